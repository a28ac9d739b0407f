"""Whatever a page can do, a program can do: every route that takes a POST has its counterpart in the API."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from django.urls import URLPattern, URLResolver, get_resolver

ACTIONS = {
    "home-sample": "POST sample-project",
    "datasets:new": "POST datasets",
    "datasets:upload": "POST dataset-upload-finish",
    "datasets:upload-text": "PUT dataset-upload-data",
    "datasets:upload-delete": "DELETE dataset-upload",
    "datasets:archive": "PATCH dataset",
    "datasets:restore": "PATCH dataset",
    "datasets:delete": "DELETE dataset",
    "environments:overview": "POST document-sets",
    "environments:documents-delete": "DELETE document-set",
    "environments:token-replace": "PUT environment-token",
    "environments:token-delete": "DELETE environment-token",
    "jobs:new": "POST jobs",
    "jobs:new-preview": "POST job-estimate",
    "jobs:pause": "POST job-pause",
    "jobs:resume": "POST job-resume",
    "jobs:cancel": "POST job-cancel",
    "jobs:steps": "PATCH job",
    "jobs:priority": "PATCH job",
    "rewards:new": "POST reward-functions",
    "rewards:try": "POST reward-trials",
    "rewards:trial-cancel": "POST reward-trial-cancel",
    "tenants:tokens": "POST api-tokens",
    "tenants:token-revoke": "DELETE api-token",
    "tenants:members": "POST invitations",
    "tenants:member-leave": "POST member-leave",
    "tenants:member-role": "PATCH member",
    "tenants:member-remove": "DELETE member",
    "tenants:invitation-resend": "POST invitation-resend",
    "tenants:invitation-revoke": "DELETE invitation",
    "tenants:settings": "PATCH tenant",
    "tenants:export-create": "POST exports",
    "tenants:deletion": "POST tenant-deletion",
    "tenants:deletion-undo": "DELETE tenant-deletion",
    "webhooks:list": "POST webhooks",
    "webhooks:detail": "PATCH webhook",
    "webhooks:switch": "PATCH webhook",
    "webhooks:delete": "DELETE webhook",
    "webhooks:rotate": "POST webhook-rotate",
    "webhooks:ping": "POST webhook-ping",
    "webhooks:redeliver": "POST webhook-redeliver",
    "webhooks:notifications": "PUT notifications",
}
"""A page's route and what does the same in the API: a method and the name of a route there."""

OF_A_BROWSER = {
    "tenants:switch": "a token belongs to one tenant",
    "tenants:invitation-accept": "a visitor without an account",
    "tenants:impersonation-start": "admins",
    "tenants:impersonation-end": "admins",
    "engine_room:drain": "operators; tokens belong to tenants",
    "engine_room:resume": "operators",
    "engine_room:scale": "operators",
}
"""Routes whose action means nothing to a program."""

OUTSIDE = ("admin/", "accounts/", "api/")


def page_actions(resolver: URLResolver, prefix: str = "", namespace: str = "") -> Iterator[str]:
    """The names of the pages' routes whose view takes a POST."""
    for entry in resolver.url_patterns:
        pattern = prefix + str(entry.pattern)
        if pattern.startswith(OUTSIDE):
            continue
        if isinstance(entry, URLPattern):
            if takes_post(entry.callback):
                yield f"{namespace}{entry.name}"
        else:
            yield from page_actions(entry, pattern, f"{entry.namespace}:" if entry.namespace else namespace)


def takes_post(view: Any) -> bool:
    """By its source: a decorated view's holds its decorators."""
    if hasattr(view, "view_class"):
        return hasattr(view.view_class, "post")
    source = inspect.getsource(inspect.unwrap(view))
    return '"POST"' in source or "require_POST" in source or "request.POST" in source


def test_every_action_of_a_page_exists_in_the_api() -> None:
    found = set(page_actions(get_resolver()))
    assert len(found) > 20
    assert found - ACTIONS.keys() - OF_A_BROWSER.keys() == set(), "give it an address in the API and name that here"
    assert (ACTIONS.keys() | OF_A_BROWSER.keys()) - found == set(), "these are no more"


def test_the_counterparts_exist() -> None:
    api = {
        (entry.name, method.upper())
        for entry in flatten(get_resolver("portal.api.urls"))
        if hasattr(entry.callback, "cls")
        for method in ("post", "put", "patch", "delete")
        if hasattr(entry.callback.cls, method)
    }
    named = {tuple(reversed(action.split(" "))) for action in ACTIONS.values()}
    assert named - api == set()


def flatten(resolver: URLResolver) -> Iterator[URLPattern]:
    for entry in resolver.url_patterns:
        if isinstance(entry, URLPattern):
            yield entry
        else:
            yield from flatten(entry)
