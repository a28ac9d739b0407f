"""Unfinished uploads count as storage; reward trials have a limit of their own, and what they spend counts."""

from __future__ import annotations

import io
import threading
from contextlib import suppress
from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from engine.spec.trial import TrialReport
from portal.datasets.building import BuildOptions
from portal.datasets.models import DatasetUpload
from portal.datasets.tasks import forget_uploads
from portal.datasets.uploads import append_to_upload, complete_upload, create_upload, delete_upload, finish_upload
from portal.errors import QuotaExceeded
from portal.rewards.models import RewardTrial
from portal.rewards.trial_services import (
    Sampling,
    TrialRows,
    cancel_reward_trial,
    start_reward_trial,
    sweep_reward_trials,
    take_in_report,
)
from portal.tenants.models import Tenant
from portal.usage.models import UsageRecord
from portal.usage.periods import Period
from portal.usage.selectors import get_totals
from tests.portal.factories import build_owned
from tests.portal.jobs.test_create import create, ensure_bundled_base_model
from tests.portal.usage.test_quotas import limit, meter

ROW = b'{"prompt": "1+1?", "answer": 2}\n'


def stored(owned):
    return meter(owned, "storage_bytes").used


def begin(owned, name="rows"):
    return create_upload(tenant=owned.tenant, user=owned.user, name=name)


def send(owned, upload, content, **known):
    size = DatasetUpload.objects.get(pk=upload.pk).size_bytes
    return append_to_upload(
        tenant=owned.tenant, user=owned.user, upload_id=upload.pk, stream=io.BytesIO(content), offset=size, **known
    )


# --- unfinished uploads ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("known", [{"length": len(ROW)}, {}])
def test_what_is_being_sent_counts_as_storage(ours, known):
    before = stored(ours)
    upload = begin(ours)
    limit(ours, max_storage_bytes=before + 2 * len(ROW) + 5)
    send(ours, upload, ROW, **known)
    send(ours, upload, ROW, **known)
    assert stored(ours) == before + 2 * len(ROW)
    with pytest.raises(QuotaExceeded, match="no room") as refused:
        send(ours, upload, ROW, **known)
    found = refused.value.limit
    assert (found.kind, found.limit) == ("storage_bytes", before + 2 * len(ROW) + 5)
    kept = DatasetUpload.objects.get(pk=upload.pk)
    assert kept.reserved_bytes == 0 and kept.size_bytes == kept.data_path.stat().st_size
    delete_upload(tenant=ours.tenant, user=ours.user, upload_id=upload.pk)
    assert stored(ours) == before


def test_the_version_takes_the_place_of_what_was_sent(ours, theirs):
    """There is room for the version alone, not for what was sent beside it."""
    content = b"".join(b'{"prompt": "%d+1?", "answer": %d}\n' % (n, n + 1) for n in range(20))

    def finish(owned, upload):
        send(owned, upload, content)
        options = BuildOptions()
        return finish_upload(tenant=owned.tenant, user=owned.user, upload_id=upload.pk, options=options)

    size = finish(theirs, begin(theirs)).size_bytes
    before = stored(ours)
    limit(ours, max_storage_bytes=before + size + 10)
    assert finish(ours, begin(ours)).size_bytes == size
    assert stored(ours) == before + size


def test_what_a_packed_upload_holds_has_to_fit_too(ours):
    import gzip

    before = stored(ours)
    upload = begin(ours)
    packed = gzip.compress(ROW * 1000)
    send(ours, upload, packed)
    limit(ours, max_storage_bytes=before + len(packed) + 100)
    with pytest.raises(QuotaExceeded, match="no room"):
        complete_upload(tenant=ours.tenant, user=ours.user, upload_id=upload.pk)
    assert stored(ours) == before + len(packed)


def test_a_full_storage_refuses_a_new_upload_in_the_api(api, ours):
    limit(ours, max_storage_bytes=1)
    answer = api.post("/api/v1/dataset-uploads/", {"name": "more"}, "application/json")
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (409, "quota_exceeded")
    assert error["limit"] == {
        "kind": "storage_bytes",
        "used": stored(ours),
        "limit": 1,
        "resets_at": None,
        "retry_after": None,
    }


def test_uploads_that_were_not_finished_within_a_day_are_removed(ours):
    before, upload = stored(ours), begin(ours)
    send(ours, upload, ROW)
    assert upload.expires_at - timezone.now() <= timedelta(days=1)
    DatasetUpload.objects.filter(pk=upload.pk).update(expires_at=timezone.now())
    forget_uploads()
    assert stored(ours) == before and not upload.folder.exists()


def test_what_a_request_that_was_cut_off_had_reserved_is_given_back(ours):
    upload = begin(ours)
    DatasetUpload.objects.filter(pk=upload.pk).update(reserved_bytes=10**9)
    limit(ours, max_storage_bytes=10**9)
    with pytest.raises(QuotaExceeded):
        begin(ours, "another")
    forget_uploads()
    begin(ours, "another")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("known", [True, False])
def test_uploads_at_once_never_exceed_the_quota_together(known):
    ensure_bundled_base_model()
    owned = build_owned("busy")
    uploads = [begin(owned, f"rows {number}") for number in range(4)]
    content = ROW * 100
    limit(owned, max_storage_bytes=int(stored(owned)) + 2 * len(content) + 50)
    barrier, received = threading.Barrier(4), threading.Barrier(4)

    class Slow(io.BytesIO):
        """All are under way before any of them has come to its end."""

        met = False

        def read(self, size=-1):
            if not self.met:
                self.met = True
                with suppress(threading.BrokenBarrierError):
                    received.wait(2)
            return super().read(size)

    def run(upload):
        barrier.wait()
        try:
            append_to_upload(
                tenant=owned.tenant,
                user=owned.user,
                upload_id=upload.pk,
                stream=Slow(content),
                offset=0,
                length=len(content) if known else None,
            )
        except QuotaExceeded:
            pass
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=[upload]) for upload in uploads]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stored(owned) <= owned.tenant.quotas.max_storage_bytes
    whole = [upload for upload in uploads if DatasetUpload.objects.get(pk=upload.pk).size_bytes == len(content)]
    assert len(whole) == 2 if known else len(whole) >= 1


# --- reward trials ---------------------------------------------------------------------------------------------------


def start(owned):
    return start_reward_trial(
        tenant=owned.tenant,
        user=owned.user,
        reward_version=owned.reward_version,
        rows=TrialRows(row={"prompt": "1+1?", "answer": 2}, completions=["2"]),
        sampling=Sampling(),
    )


def end(trial, *, tokens=0, seconds=0.0, state="done", sequence=1):
    take_in_report(
        report=TrialReport(
            trial_id=trial.pk.hex,
            sequence=sequence,
            state=state,
            reason="Done.",
            sampled_tokens=tokens,
            accelerator_seconds=seconds,
        )
    )


def test_reward_trials_of_a_day_are_limited(ours, api):
    """The factory has begun one."""
    Tenant.objects.update(max_reward_trials_per_day=2)
    ours.tenant.refresh_from_db()
    end(start(ours))
    with pytest.raises(QuotaExceeded, match="2 of 2 reward tests of today") as refused:
        start(ours)
    tomorrow = (timezone.now() + timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)
    found = refused.value.limit
    assert (found.kind, found.used, found.limit, found.resets_at) == ("reward_trials", 2, 2, tomorrow)
    assert "starts anew" in refused.value.hint
    body = {"reward_version": str(ours.reward_version.pk), "row": {"prompt": "?"}, "completions": ["2"]}
    answer = api.post("/api/v1/reward-trials/", body, "application/json")
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["limit"]["kind"]) == (409, "quota_exceeded", "reward_trials")
    assert error["limit"]["resets_at"] == tomorrow.isoformat()
    RewardTrial.objects.update(created_at=timezone.now() - timedelta(days=1))
    start(ours)


def test_trials_are_no_reason_against_a_job(ours):
    Tenant.objects.update(max_reward_trials_per_day=0)
    ours.tenant.refresh_from_db()
    create(ours)


def test_the_meter_of_trials(api, ours):
    (found,) = [each for each in api.get("/api/v1/quotas/").json()["meters"] if each["kind"] == "reward_trials"]
    assert (found["used"], found["limit"], found["level"]) == (1, 500, "ok") and found["resets_at"]


def spent(owned):
    totals = get_totals(owned.tenant, Period.of())
    return totals.tokens_sampled, totals.accelerator_seconds


def test_what_trials_spend_counts_once(ours, browser, api):
    trial = start(ours)
    end(trial, tokens=30, seconds=0.5, state="running")
    assert spent(ours) == (0, 0)
    end(trial, tokens=40, seconds=1.5, sequence=2)
    end(trial, tokens=50, seconds=2.5, sequence=3)  # it has ended
    assert spent(ours) == (40, 1.5)
    end(start(ours), tokens=2)
    record = UsageRecord.objects.get(job=None)
    assert (record.job_name, record.member, record.tokens_sampled) == ("Reward tests", ours.user, 42)
    assert meter(ours, "sampled_tokens").used == 42
    page = browser.get("/usage/").content.decode()
    assert "Reward tests" in page and "removed" not in page


def test_trials_that_are_cancelled_or_given_up_count_what_was_reported(ours):
    cancelled, lost = start(ours), start(ours)
    for trial in (cancelled, lost):
        end(trial, tokens=10, state="running")
    cancel_reward_trial(tenant=ours.tenant, user=ours.user, trial_id=cancelled.pk)
    assert spent(ours)[0] == 10
    RewardTrial.objects.update(heard_at=timezone.now() - timedelta(minutes=4))
    sweep_reward_trials()
    sweep_reward_trials()
    assert spent(ours)[0] == 20
