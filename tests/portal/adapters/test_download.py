"""Signed links: what they give, and to whom they refuse it."""

import io
import zipfile
from pathlib import Path

import pytest
from django.core import signing
from django.test import AsyncClient
from django.utils.http import parse_header_parameters

from portal.adapters.card import render_card
from portal.adapters.models import AdapterVersion
from portal.adapters.services import LINK_SALT, create_download_link
from portal.base_models.services import ensure_bundled_base_model
from portal.errors import Conflict
from portal.jobs.models import Job
from portal.jobs.services import ingest_events
from tests.portal.factories import WEIGHTS, build_owned, evaluation, make_batch

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def ours(transactional_db):
    ensure_bundled_base_model()
    return build_owned("ours")


async def fetch(link):
    response = await AsyncClient().get(link)
    if response.streaming:
        return response, b"".join([chunk async for chunk in response.streaming_content])
    return response, response.content


async def test_the_archive(ours):
    response, content = await fetch(create_download_link(adapter=ours.adapter))
    assert response.status_code == 200
    assert int(response["Content-Length"]) == len(content)
    assert response["Content-Type"] == "application/zip"
    disposition, parameters = parse_header_parameters(response["Content-Disposition"])
    assert (disposition, parameters["filename"]) == ("attachment", f"job-{ours.job.pk.hex[:8]}-v1.zip")
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert archive.testzip() is None
        assert {info.compress_type for info in archive.infolist()} == {zipfile.ZIP_STORED}
        assert archive.namelist() == ["adapter_model.safetensors", "adapter_config.json", "README.md"]
        assert archive.read("adapter_model.safetensors") == WEIGHTS
        assert archive.read("adapter_config.json") == b'{"r": 16}'
        card = archive.read("README.md").decode()
    assert ours.adapter.name in card and ours.adapter.sha256 in card and "PeftModel.from_pretrained" in card


def test_the_card_says_how_well_it_does(ours):
    ingest_events(batch=make_batch(ours.job, evaluation(0.25), evaluation(0.5, version=1), first=4))
    card = render_card(AdapterVersion.objects.select_related("job__base_model").get())
    assert "Held-out accuracy, base model: 25.0% of 8 rows" in card
    assert "Held-out accuracy, this version: 50.0% of 8 rows" in card
    assert f"Dataset: sums v1, sha256 `{ours.dataset_version.sha256}`" in card
    assert "Reward: numeric v1 (numeric)" in card
    assert "Batch that trained it, mean reward: 0.100" in card
    assert "Algorithm: grpo" in card and "Step: 1 of 2" in card


def tampered(link):
    return link[:-1] + ("A" if link[-1] != "A" else "B")


@pytest.mark.parametrize(
    "spoil",
    [
        tampered,
        lambda link: "/download/nonsense",
        lambda link: "/download/" + signing.dumps("x", salt="another purpose"),
        lambda link: "/download/" + signing.dumps("00000000-0000-0000-0000-000000000000", salt=LINK_SALT),
        lambda link: "/download/" + signing.dumps("x", key="another key", salt=LINK_SALT),
    ],
)
async def test_wrong_links_are_refused(ours, spoil):
    response, content = await fetch(spoil(create_download_link(adapter=ours.adapter)))
    assert response.status_code == 403
    assert b"wrong or has expired" in content


async def test_links_expire(ours, settings):
    link = create_download_link(adapter=ours.adapter)
    settings.DOWNLOAD_LINK_SECONDS = -1
    response, content = await fetch(link)
    assert response.status_code == 403
    assert b"expired" in content


def outside(adapter: AdapterVersion, var: Path) -> None:
    folder = var / "elsewhere"
    folder.mkdir()
    (folder / "adapter_model.safetensors").write_bytes(WEIGHTS)
    (folder / "adapter_config.json").write_text("{}")
    adapter.path = str(folder)


def dotted(adapter: AdapterVersion, var: Path) -> None:
    outside(adapter, var)
    adapter.path = str(var / "engine" / ".." / "elsewhere")


def linked_file(adapter: AdapterVersion, var: Path) -> None:
    (var / "secret").write_bytes(WEIGHTS)
    weights = Path(adapter.path) / "adapter_model.safetensors"
    weights.unlink()
    weights.symlink_to(var / "secret")


def missing(adapter: AdapterVersion, var: Path) -> None:
    (Path(adapter.path) / "adapter_config.json").unlink()


def damaged(adapter: AdapterVersion, var: Path) -> None:
    (Path(adapter.path) / "adapter_model.safetensors").write_bytes(WEIGHTS[:-1] + b"!")


@pytest.mark.parametrize("spoil", [outside, dotted, linked_file, missing, damaged])
async def test_only_sound_files_of_the_store_are_handed_out(ours, settings, spoil):
    link = create_download_link(adapter=ours.adapter)
    spoil(ours.adapter, settings.MARLAAS_VAR)
    await ours.adapter.asave()
    response, content = await fetch(link)
    assert response.status_code == 409
    assert WEIGHTS not in content


async def test_removed_versions(ours):
    link = create_download_link(adapter=ours.adapter)
    ours.adapter.removed = True
    await ours.adapter.asave()
    assert (await fetch(link))[0].status_code == 403
    with pytest.raises(Conflict, match="Retention removed"):
        create_download_link(adapter=ours.adapter)


async def test_links_of_deleted_jobs(ours):
    link = create_download_link(adapter=ours.adapter)
    await Job.objects.all().adelete()
    assert (await fetch(link))[0].status_code == 403
