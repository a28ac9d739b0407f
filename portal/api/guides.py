"""Guides to the API, with commands and programs that run as they are.

A sample is a file of ``templates/api/samples/``; a line that begins with ``##`` begins a step of it. What a reader
copies is what the tests run.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.template.loader import render_to_string
from django.urls import URLPattern, path, reverse

from portal.api.errors import error_body
from portal.api.idempotency import HEADER
from portal.api.throttling import ReadThrottle, WriteThrottle
from portal.errors import FieldError
from portal.live.streams import HEARTBEAT_SECONDS
from portal.pages.http import TenantRequest, tenant_page


@dataclass(frozen=True)
class Guide:
    """One page of the guides."""

    slug: str
    title: str
    about: str
    samples: tuple[str, ...] = ()


@dataclass(frozen=True)
class Step:
    """A stretch of a sample under one heading; the first may have none."""

    title: str
    code: str


GUIDES = [
    Guide(
        "quickstart",
        "Quickstart",
        "From rows to a running job, with curl or Python.",
        ("quickstart.sh", "quickstart.py"),
    ),
    Guide(
        "events", "Events as they come", "Follow one job or all of them, and miss nothing.", ("events.sh", "events.py")
    ),
    Guide("uploads", "Uploads", "Rows as a body, as a form, or in pieces that survive a cut.", ("uploads.sh",)),
    Guide("webhooks", "Webhooks", "Be called when a job ends, and check who calls.", ("webhooks.py",)),
    Guide("errors", "Errors and limits", "The one shape of errors, rate limits and quotas."),
    Guide("lists", "Lists", "Pages by cursor, and filters.", ("lists.py",)),
    Guide("idempotency", "Sending twice", "Repeat a request without doing its work twice.", ("idempotency.sh",)),
]


THROTTLES = {"read": ReadThrottle, "write": WriteThrottle}
ERROR_EXAMPLE = json.dumps(
    error_body(
        400,
        "invalid",
        "The job was not created.",
        [FieldError("settings.training.steps", "must be at least 1")],
        "Correct the fields and send it again.",
    ),
    indent=2,
)


def render_sample(name: str, api: str) -> str:
    """The sample's text for the API at ``api``, which ends without a slash."""
    return render_to_string(f"api/samples/{name}", {"api": api})


def split_steps(text: str) -> list[Step]:
    """``## title`` lines begin a step."""
    steps: list[Step] = []
    title, lines = "", []
    for line in [*text.splitlines(), "## "]:
        if not line.startswith("## "):
            lines.append(line)
            continue
        if code := "\n".join(lines).strip("\n"):
            steps.append(Step(title, code))
        title, lines = line.removeprefix("## "), []
    return steps


def _api_address(request: HttpRequest) -> str:
    return request.build_absolute_uri(reverse("api:unknown", args=["x"])).removesuffix("/x")


@tenant_page
def guide_list(request: TenantRequest) -> HttpResponse:
    return render(request, "api/guides.html", {"guides": GUIDES, "api": _api_address(request)})


def _page(guide: Guide) -> Callable[[HttpRequest], HttpResponse]:
    @tenant_page
    def show(request: TenantRequest) -> HttpResponse:
        api = _api_address(request)
        samples = [{"name": name, "steps": split_steps(render_sample(name, api))} for name in guide.samples]
        context = {
            "guide": guide,
            "guides": GUIDES,
            "api": api,
            "samples": samples,
            "heartbeat": int(HEARTBEAT_SECONDS),
            "key_header": HEADER,
            "error_example": ERROR_EXAMPLE,
            "streams": {
                "token": settings.MAX_STREAMS_PER_TOKEN,
                "user": settings.MAX_STREAMS_PER_USER,
                "tenant": settings.MAX_STREAMS_PER_TENANT,
            },
            "rates": {kind: each().get_rate_in_words() for kind, each in THROTTLES.items()},
        }
        return render(request, f"api/guide_{guide.slug}.html", context)

    return show  # type: ignore[return-value]


app_name = "guides"
urlpatterns: list[URLPattern] = [
    path("", guide_list, name="list"),
    *[path(f"{guide.slug}/", _page(guide), name=guide.slug) for guide in GUIDES],
]
