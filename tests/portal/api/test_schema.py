"""The schema is complete, and the API keeps to it: made-up requests meet no 5xx and no answer it does not tell."""

from __future__ import annotations

import random
from typing import Any

import pytest
import schemathesis
from django.core.management import call_command
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import checks

from portal.asgi import application
from portal.tenants.models import Scope
from portal.tenants.services import create_api_token
from tests.portal.factories import Owned

EXAMPLES = 4
"""Requests made up for each operation."""
RATE = "1000000/min"
checks.load_all_checks()
CHECKED = [
    checks.CHECKS.get_one(name)
    for name in (
        "not_a_server_error",
        "status_code_conformance",
        "content_type_conformance",
        "response_schema_conformance",
    )
]


def test_the_schema_has_no_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    call_command("spectacular", "--fail-on-warn", "--validate")
    assert "openapi: 3" in capsys.readouterr().out


@pytest.mark.django_db(transaction=True)
def test_made_up_requests_are_answered_as_the_schema_says(
    ours: Owned, portal_settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of them name objects that exist. Bounded: a few requests for each operation, always the same ones."""
    portal_settings.ALLOWED_HOSTS = ["testserver"]
    for throttle in ("Read", "Write"):
        monkeypatch.setattr(f"portal.api.throttling.{throttle}Throttle.rate", RATE, raising=False)
    _, secret = create_api_token(tenant=ours.tenant, user=ours.user, name="all", scopes=list(Scope))
    headers = {"Authorization": f"Bearer {secret}"}
    schema = schemathesis.openapi.from_asgi("/api/v1/schema/", application)
    operations = [result.ok() for result in schema.get_all_operations()]
    assert len(operations) > 50
    faults: dict[str, str] = {}
    for operation in operations:
        try:
            ask(operation, headers, ours.ids)
        except (Exception, BaseExceptionGroup) as error:  # every operation is tried, whatever is wrong with one
            faults[operation.label] = str(error)
    assert faults == {}, "\n\n".join(f"{label}: {text}" for label, text in faults.items())


def ask(operation: Any, headers: dict[str, str], ids: dict[str, Any]) -> None:
    chance = random.Random(operation.label)

    @settings(
        max_examples=EXAMPLES,
        database=None,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy())
    def send(case: Any) -> None:
        for name in case.path_parameters or {}:
            if chance.random() < 0.5:
                case.path_parameters[name] = str(ids[name])
        case.call_and_validate(headers=headers, checks=CHECKED)

    send()
