"""The guides: every page there is, every sample a program; tests/browser/test_automation.py runs the commands."""

from __future__ import annotations

import base64
import hashlib
import hmac
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.test import Client
from django.utils.html import escape

from portal.api.guides import GUIDES, render_sample, split_steps
from tests.portal.factories import Owned

API = "http://testserver/api/v1"
SAMPLES = [name for guide in GUIDES for name in guide.samples]


def test_every_guide_shows_its_samples_for_this_address(browser: Client, ours: Owned) -> None:
    assert browser.get("/guides/").status_code == 200
    for guide in GUIDES:
        page = browser.get(f"/guides/{guide.slug}/")
        assert page.status_code == 200
        for name in guide.samples:
            for step in split_steps(render_sample(name, API)):
                assert escape(step.code) in page.content.decode()


def test_no_sample_is_left_out() -> None:
    folder = Path(settings.BASE_DIR) / "templates" / "api" / "samples"
    assert sorted(path.name for path in folder.iterdir()) == sorted(SAMPLES)


@pytest.mark.parametrize("name", SAMPLES)
def test_every_sample_is_a_program(name: str) -> None:
    text = render_sample(name, API)
    if name.endswith(".py"):
        compile(text, name, "exec")
    else:
        subprocess.run(["sh", "-n"], input=text, text=True, check=True)


def test_rates_and_headers_are_those_in_force(browser: Client, ours: Owned) -> None:
    page = browser.get("/guides/errors/").content.decode()
    assert "1200 per minute" in page and "120 per minute" in page


def test_the_check_of_a_webhook_refuses_what_is_forged() -> None:
    scope: dict[str, Any] = {}
    exec(render_sample("webhooks.py", API), scope)  # noqa: S102 (our own text)
    secret, body = "whsec_" + base64.b64encode(b"k" * 32).decode(), b'{"type": "job.failed"}'
    now = str(int(time.time()))
    digest = hmac.new(b"k" * 32, b"m1." + now.encode() + b"." + body, hashlib.sha256).digest()
    headers = {
        "webhook-id": "m1",
        "webhook-timestamp": now,
        "webhook-signature": "v1,bm9uZQ== v1," + base64.b64encode(digest).decode(),
    }
    assert scope["is_genuine"](secret, headers, body)
    assert not scope["is_genuine"](secret, headers, body + b" ")
    assert not scope["is_genuine"](secret, {**headers, "webhook-id": "m2"}, body)
    assert not scope["is_genuine"](secret, {**headers, "webhook-timestamp": str(int(now) - 600)}, body)
