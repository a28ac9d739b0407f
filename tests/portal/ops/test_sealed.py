"""What older versions kept in clear is sealed, and sealed anew after a change of keys."""

from __future__ import annotations

import importlib
from io import StringIO

import pytest
from allauth.mfa.models import Authenticator
from allauth.mfa.recovery_codes.internal.auth import RecoveryCodes
from allauth.mfa.totp.internal.auth import TOTP, format_hotp_value, hotp_value, yield_hotp_counters_from_time
from django.apps import apps
from django.core.management import CommandError, call_command
from django.utils import timezone

from portal.ops.sealed import seal_all
from portal.sealing import get_sealer
from portal.webhooks.delivery import deliver_due
from portal.webhooks.models import Endpoint
from portal.webhooks.occurrences import make_ping

SEED = "JBSWY3DPEHPK3PXP"
NEW_KEY = "a new key of more than 32 characters"


@pytest.fixture
def kept(ours):
    """Everything as older versions kept it."""
    Endpoint.objects.filter(pk=ours.endpoint.pk).update(secret="whsec_bmV3", old_secret="whsec_b2xk")
    totp = Authenticator.objects.create(user=ours.user, type="totp", data={"secret": SEED})
    codes = Authenticator.objects.create(user=ours.user, type="recovery_codes", data={"seed": "5eed", "used_mask": 0})
    ours.environment_token.path.write_text("t0ken\n")

    def read():
        for row in (ours.endpoint, totp, codes):
            row.refresh_from_db()
        found = [ours.endpoint.secret, ours.endpoint.old_secret, totp.data["secret"], codes.data["seed"]]
        return [*found, ours.environment_token.path.read_text()]

    return read


CLEAR = ["whsec_bmV3", "whsec_b2xk", SEED, "5eed", "t0ken"]


def opened(sealed):
    return [get_sealer().open(each) for each in sealed]


def test_all_secrets_are_sealed_once(kept):
    assert seal_all().renewed == 5
    sealed = kept()
    assert all(each.startswith("sealed:") for each in sealed) and opened(sealed) == CLEAR
    again = seal_all()
    assert (again.renewed, again.current) == (0, 5) and kept() == sealed


def test_a_new_key_seals_and_the_old_one_can_go(kept, settings):
    seal_all()
    settings.FIELD_KEYS = [NEW_KEY]
    out = StringIO()
    call_command("seal_secrets", stdout=out)
    assert "5 secret(s) sealed anew" in out.getvalue()
    settings.SECRET_KEY = "another secret key, of whatever length"
    assert opened(kept()) == CLEAR
    settings.FIELD_KEYS = []
    with pytest.raises(CommandError, match="None of the keys opens these"):
        call_command("seal_secrets", stdout=out)


def test_the_migration_seals_and_unseals(kept):
    migration = importlib.import_module("portal.webhooks.migrations.0002_sealed_secrets")
    migration.seal(apps, None)
    assert all(each.startswith("sealed:") for each in kept()[:2]) and opened(kept())[:2] == CLEAR[:2]
    migration.unseal(apps, None)
    assert kept()[:2] == CLEAR[:2]


def test_second_factors_work_sealed(ours):
    totp = TOTP.activate(ours.user, SEED)
    assert totp.instance.data["secret"].startswith("sealed:")
    code = format_hotp_value(hotp_value(SEED, next(yield_hotp_counters_from_time())))
    assert totp.validate_code(code)
    codes = RecoveryCodes.activate(ours.user)
    assert codes.instance.data["seed"].startswith("sealed:")
    assert codes.validate_code(codes.get_unused_codes()[0])


def test_an_endpoint_whose_secret_cannot_be_read_sends_nothing(ours, settings):
    settings.SECRET_KEY = "another secret key, of whatever length"
    message = make_ping(ours.endpoint)
    message.next_attempt_at = timezone.now()
    message.save()
    deliver_due()
    assert "cannot be read any more; make a new one" in message.attempts.get().error
