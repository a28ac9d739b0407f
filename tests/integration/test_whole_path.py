"""Upload -> job -> live events -> download -> load with PEFT, through every real part."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer
from websockets.sync.client import connect

from tests.integration.conftest import PASSWORD, ROWS, SHORT, Installation, Tenant, training

STEPS = 3


@pytest.fixture(scope="module")
def done(ours: Tenant, theirs: Tenant) -> dict[str, dict[str, Any]]:
    """Two tenants' jobs that ran at the same time; different ranks and scales on one base."""
    ours_id = ours.start_job(ours.upload(ROWS), ours.reward(SHORT), **training(STEPS, seed=1))
    lora = {"rank": 8, "alpha": 4, "use_rslora": True}
    theirs_id = theirs.start_job(theirs.upload(ROWS), theirs.reward(SHORT), **training(STEPS, seed=2, lora=lora))
    return {"ours": ours.wait(ours_id), "theirs": theirs.wait(theirs_id)}


def test_both_jobs_succeed(done):
    for job in done.values():
        assert job["status"] == "succeeded", job["reason"]
        assert job["step"] == STEPS
        assert job["reason"] == "All 3 steps are committed."


def test_they_ran_at_the_same_time(done):
    assert done["theirs"]["started_at"] < done["ours"]["finished_at"]
    assert done["ours"]["started_at"] < done["theirs"]["finished_at"]


def test_every_step_is_reported_once_in_order_with_its_metrics(ours, done):
    steps = [event["payload"] for event in ours.events(done["ours"]["id"], "step")]
    assert [step["step"] for step in steps] == [1, 2, 3]
    assert [step["adapter_version"] for step in steps] == [1, 2, 3]
    for step in steps:
        metrics = step["metrics"]
        assert metrics["tokens_sampled"] > 0
        assert 0 <= metrics["reward_mean"] <= 1
        assert metrics["ratio_mean"] == pytest.approx(1, abs=1e-6)
        assert metrics["importance_mean"] == pytest.approx(1, abs=1e-3)  # fp32: sampler and trainer agree
        assert metrics["logprob_gap"] < 1e-3


def test_every_episode_names_the_version_that_drew_it(ours, done):
    groups = [event["payload"] for event in ours.events(done["ours"]["id"], "rollout")]
    assert len(groups) == STEPS * 2
    for group in groups:
        assert len(group["episodes"]) == 4
        assert {episode["adapter_version"] for episode in group["episodes"]} == {group["step"] - 1}


def test_sequence_numbers_have_no_gap_and_statuses_a_reason(ours, done):
    events = ours.events(done["ours"]["id"])
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    statuses = [event["payload"] for event in events if event["type"] == "status"]
    assert [status["status"] for status in statuses] == ["queued", "preparing", "running", "succeeded"]
    assert all(status["reason"] for status in statuses)


def test_base_and_result_are_evaluated_on_held_out_rows(ours, done):
    evaluations = [event["payload"] for event in ours.events(done["ours"]["id"], "evaluation")]
    assert [(e["adapter_version"], e["rows"]) for e in evaluations] == [(None, 9), (STEPS, 9)]


def test_every_stage_left_its_spans(ours, done):
    stages = {event["payload"]["stage"] for event in ours.events(done["ours"]["id"], "span")}
    assert stages == {"prepare", "rollout", "environment", "queue", "train", "publish", "evaluate"}


def test_a_socket_gets_all_events_and_resumes_after_the_last_seen(installation: Installation, ours, done):
    job_id = done["ours"]["id"]
    whole = read_socket(installation, "ours", job_id, after=0)
    assert [event["seq"] for event in whole] == [
        event["seq"] for event in ours.events(job_id) if event["type"] != "span"
    ]
    cut = whole[5]["seq"]
    assert read_socket(installation, "ours", job_id, after=cut) == whole[6:]


def read_socket(installation: Installation, user: str, job_id: str, after: int) -> list[dict[str, Any]]:
    with httpx.Client(base_url=installation.url, follow_redirects=True) as browser:
        form = browser.get("/accounts/login/").text
        token = form.split('name="csrfmiddlewaretoken" value="')[1].split('"')[0]
        entered = browser.post(
            "/accounts/login/", data={"login": user, "password": PASSWORD, "csrfmiddlewaretoken": token}
        )
        assert entered.url.path == "/"
        cookie = f"sessionid={browser.cookies['sessionid']}"
    address = installation.url.replace("http", "ws") + f"/ws/jobs/{job_id}/?after={after}"
    events: list[dict[str, Any]] = []
    with connect(address, additional_headers={"Cookie": cookie, "Origin": installation.url}) as socket:
        while True:
            frame = json.loads(socket.recv(timeout=10))
            events += frame["events"]
            if frame["last_seq"] == frame["job"]["last_seq"]:
                return events


@pytest.mark.parametrize("slug", ["ours", "theirs"])
def test_the_downloaded_adapter_loads_with_peft_and_changes_the_policy(request, done, slug, tiny_folder, tmp_path):
    tenant: Tenant = request.getfixturevalue(slug)
    adapters = tenant.get(f"jobs/{done[slug]['id']}/adapters/")["results"]
    (final,) = [adapter for adapter in adapters if adapter["final"]]
    assert final["version"] == STEPS
    link = tenant.post(f"adapters/{final['id']}/link/")["url"]
    with zipfile.ZipFile(io.BytesIO(httpx.get(link).raise_for_status().content)) as archive:
        archive.extractall(tmp_path)
    (weights,) = tmp_path.rglob("adapter_model.safetensors")
    assert hashlib.sha256(weights.read_bytes()).hexdigest() == final["sha256"]
    base, adapted = (logits_of(tiny_folder, folder) for folder in (None, weights.parent))
    assert not torch.allclose(base, adapted, atol=1e-3)
    assert torch.isfinite(adapted).all()


def logits_of(model_dir: Path, adapter: Path | None) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    if adapter is not None:
        model = PeftModel.from_pretrained(model, adapter)
    ids = AutoTokenizer.from_pretrained(model_dir)("What is 3 + 4?", return_tensors="pt").input_ids
    with torch.no_grad():
        return model(ids).logits


def test_another_tenants_job_events_and_adapters_are_not_found(ours, theirs, done):
    job_id = done["theirs"]["id"]
    adapter = theirs.get(f"jobs/{job_id}/adapters/")["results"][0]["id"]
    for path in (f"jobs/{job_id}/", f"jobs/{job_id}/events/", f"jobs/{job_id}/adapters/", f"adapters/{adapter}/"):
        assert ours.http.get(path).status_code == 404
    assert ours.http.post(f"jobs/{job_id}/cancel/").status_code == 404
    assert ours.http.post(f"adapters/{adapter}/link/").status_code == 404
    assert job_id not in {job["id"] for job in ours.get("jobs/")["results"]}
