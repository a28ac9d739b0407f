"""Nothing of one tenant reaches another: on no route, by no method, through no socket and in no file."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.core import signing
from django.test import Client

from portal.adapters.services import create_download_link
from portal.audit.models import AuditEntry
from portal.tenants.exports import create_export_link
from portal.tenants.models import TenantExport
from tests.portal.factories import Owned, build_owned
from tests.portal.isolation import (
    ARGUMENT,
    CAPABILITIES,
    METHODS,
    OUTSIDE,
    Route,
    all_routes,
    assert_foreign,
    object_routes,
    plain_routes,
    socket_patterns,
)
from tests.portal.websocket import Socket

OBJECTS = object_routes()
PLAIN = plain_routes()


def named(route: Route) -> str:
    return route.pattern


def test_every_route_is_accounted_for(ours: Owned) -> None:
    """A new kind of argument needs an id in ``Owned.ids``, or a guard of its own in ``isolation.py``."""
    unknown = [route.pattern for route in OBJECTS if set(route.arguments) - ours.ids.keys()]
    assert unknown == []
    assert len(OBJECTS) > 25 and len(PLAIN) > 20
    patterns = {route.pattern for route in all_routes()}
    assert CAPABILITIES.keys() <= patterns
    assert all(any(pattern.startswith(prefix) for pattern in patterns) for prefix in OUTSIDE)


@pytest.mark.parametrize("route", OBJECTS, ids=named)
def test_no_method_finds_a_foreign_object(browser: Client, api: Client, theirs: Owned, route: Route) -> None:
    """Nor does what it answers differ from the answer about an object that does not exist."""
    ids = theirs.ids
    missing = {name: 2**40 if isinstance(value, int) else uuid.uuid4() for name, value in ids.items()}
    client = api if route.pattern.startswith("api/") else browser
    before = AuditEntry.objects.filter(tenant_id=theirs.tenant.pk).count()
    assert_foreign(client, route, ids)
    assert AuditEntry.objects.filter(tenant_id=theirs.tenant.pk).count() == before, "something of theirs was changed"
    for method in METHODS:
        foreign, absent = (getattr(client, method)(route.path(each)) for each in (ids, missing))
        assert (foreign.status_code, foreign.content) == (absent.status_code, absent.content)


@pytest.mark.parametrize("route", PLAIN, ids=named)
def test_lists_and_forms_name_nothing_foreign(browser: Client, api: Client, theirs: Owned, route: Route) -> None:
    ids = {str(value) for name, value in theirs.ids.items() if not isinstance(value, int)}
    client = api if route.pattern.startswith("api/") else browser
    answer = client.get(f"/{route.pattern}")
    text = _content(answer)
    assert answer.status_code < 500
    assert not [each for each in [*ids, theirs.user.email, "invited@theirs.example"] if each in text]


def _content(answer: Any) -> str:
    chunks = list(answer) if answer.streaming else [answer.content]
    return b"".join(chunks).decode()


@pytest.mark.parametrize("staff", [False, True])
def test_only_admins_act_as_members(client: Client, ours: Owned, theirs: Owned, staff: bool) -> None:
    ours.user.is_staff = staff
    ours.user.save()
    client.force_login(ours.user, backend="django.contrib.auth.backends.ModelBackend")
    answer = client.get(f"/impersonation/{theirs.ids['membership_id']}/")
    assert answer.status_code == (200 if staff else 404)


# --- files -----------------------------------------------------------------------------------------------------------


def test_links_open_what_they_were_made_for_only(client: Client, ours: Owned) -> None:
    export = TenantExport.objects.get(pk=ours.ids["export_id"])
    export_token = create_export_link(tenant=ours.tenant, user=ours.user, export=export).rpartition("/")[2]
    adapter_token = create_download_link(adapter=ours.adapter, user=ours.user).rpartition("/")[2]
    assert client.get(f"/download/export/{export_token}").status_code == 200
    assert client.get(f"/download/export/{adapter_token}").status_code == 403
    assert client.get(f"/download/{export_token}").status_code == 403
    forged = signing.dumps([export.pk.hex, ours.user.pk], salt="guessed")
    assert client.get(f"/download/export/{forged}").status_code == 403
    assert client.get(f"/download/export/{export_token[:-1]}").status_code == 403


# --- sockets ---------------------------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("pattern", socket_patterns())
async def test_sockets_show_nothing_foreign(pattern: str) -> None:
    ours, theirs = await sync_to_async(_two_tenants)()
    ids = await sync_to_async(lambda: theirs.ids)()
    client = Client()
    await sync_to_async(client.force_login)(ours.user, backend="django.contrib.auth.backends.ModelBackend")
    socket = Socket("/" + ARGUMENT.sub(lambda match: str(ids[match[1]]), pattern), client)
    assert await socket.connect()
    if ARGUMENT.search(pattern):
        assert await socket.receive_close() == 4404
        return
    text = str(await socket.receive())
    assert str(theirs.job.pk) not in text and str(ours.job.pk) in text
    await socket.disconnect()


def _two_tenants() -> tuple[Owned, Owned]:
    from portal.base_models.services import ensure_bundled_base_model

    ensure_bundled_base_model()
    return build_owned("ours"), build_owned("theirs")
