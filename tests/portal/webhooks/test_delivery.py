"""Webhooks on their way: signed, tried again, logged, and never into the operator's network. The server is real."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
from datetime import timedelta

import pytest
from django.core import mail as outbox
from django.utils import timezone

from portal.sealing import get_sealer
from portal.tenants.models import Membership
from portal.tenants.services import add_member, create_user
from portal.webhooks import addresses, delivery
from portal.webhooks.delivery import BACKOFF_SECONDS, deliver_due
from portal.webhooks.mails import MailText, mail_members
from portal.webhooks.models import Attempt, Delivery, Endpoint, Mail, State
from portal.webhooks.occurrences import make_ping
from portal.webhooks.services import create_endpoint, redeliver, rotate_secret, send_ping
from portal.webhooks.signing import make_secret, sign
from tests.addresses import PUBLIC, REFUSED
from tests.portal.webhooks.receiver import Receiver, answer_with, drip, start


@pytest.fixture
def receiver():
    receiver = Receiver()
    server = start(receiver)
    yield receiver
    server.shutdown()
    server.server_close()


@pytest.fixture
def hook(ours, settings, receiver):
    """An endpoint of ours at the receiver."""
    settings.WEBHOOKS_ALLOW_PRIVATE = True
    endpoint, _ = create_endpoint(tenant=ours.tenant, user=ours.user, url=receiver.url, events=["job.failed"])
    return endpoint


def secret_of(endpoint):
    return get_sealer().open(endpoint.secret)


def ping(endpoint):
    message = make_ping(endpoint)
    message.save()
    return message


def make_due(message):
    type(message).objects.filter(pk=message.pk).update(next_attempt_at=timezone.now())


def expected_signature(secret, headers, body):
    """By the specification, from what was received alone."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = b".".join([headers["webhook-id"].encode(), headers["webhook-timestamp"].encode(), body])
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


# --- signing ---------------------------------------------------------------------------------------------------------


def test_the_example_of_the_specification():
    signature = sign(
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        "msg_p5jXN8AQM9LWM0D4loKWxJek",
        1614265330,
        '{"test": 2432232314}',
    )
    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_secrets_are_long_and_differ():
    first, second = make_secret(), make_secret()
    assert first != second and len(base64.b64decode(first.removeprefix("whsec_"))) == 32


# --- sending ---------------------------------------------------------------------------------------------------------


def test_a_message_arrives_signed_and_is_logged(hook, receiver):
    message = ping(hook)
    assert deliver_due() == 1
    ((path, headers, body),) = receiver.received
    assert path == "/hook" and headers["content-type"] == "application/json"
    assert headers["webhook-signature"] == expected_signature(secret_of(hook), headers, body)
    assert headers["webhook-id"] == message.message_id
    assert abs(int(headers["webhook-timestamp"]) - timezone.now().timestamp()) < 60
    content = json.loads(body)
    assert (content["type"], content["data"]["endpoint"]) == ("ping", str(hook.pk)) and content["timestamp"]
    message.refresh_from_db()
    assert (message.state, message.tries) == (State.DELIVERED, 1) and message.finished_at
    attempt = message.attempts.get()
    assert (attempt.status_code, attempt.excerpt, attempt.error) == (200, "thanks", "")
    assert deliver_due() == 0


def test_the_old_secret_signs_for_a_day_after_a_rotation(hook, ours, receiver):
    old = secret_of(hook)
    _, new = rotate_secret(tenant=ours.tenant, user=ours.user, endpoint_id=hook.pk)
    ping(hook)
    deliver_due()
    _, headers, body = receiver.received[-1]
    both = {expected_signature(secret, headers, body) for secret in (old, new)}
    assert old != new and set(headers["webhook-signature"].split(" ")) == both
    Endpoint.objects.filter(pk=hook.pk).update(old_secret_until=timezone.now())
    ping(hook)
    deliver_due()
    _, headers, body = receiver.received[-1]
    assert headers["webhook-signature"] == expected_signature(new, headers, body)


def test_it_is_tried_again_with_the_same_id_and_body_ever_later_and_then_given_up(hook, receiver):
    receiver.answer = answer_with(500, b"broken")
    message = ping(hook)
    for number, wait in enumerate(BACKOFF_SECONDS, start=1):
        before = timezone.now()
        assert deliver_due() == 1
        message.refresh_from_db()
        assert (message.state, message.tries) == (State.PENDING, number)
        assert 0.75 * wait < (message.next_attempt_at - before).total_seconds() < 1.25 * wait + 30
        assert deliver_due() == 0  # not before its time
        make_due(message)
    deliver_due()
    message.refresh_from_db()
    assert (message.state, message.tries) == (State.FAILED, 7)
    assert len({(headers["webhook-id"], body) for _, headers, body in receiver.received}) == 1
    assert len(receiver.received) == message.attempts.count() == 7
    assert message.attempts.last().error == "Answered 500; only 2xx counts as received."


def test_a_failed_message_can_be_sent_again(hook, ours, receiver):
    message = ping(hook)
    Delivery.objects.filter(pk=message.pk).update(state=State.FAILED, tries=7, finished_at=timezone.now())
    redeliver(tenant=ours.tenant, user=ours.user, endpoint_id=hook.pk, delivery_id=message.pk)
    assert deliver_due() == 1
    message.refresh_from_db()
    assert (message.state, message.tries) == (State.DELIVERED, 1)
    assert receiver.received[0][1]["webhook-id"] == message.message_id


def test_nobody_answering_is_a_failure_to_be_tried_again(hook):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        Endpoint.objects.filter(pk=hook.pk).update(url=f"http://127.0.0.1:{unused.getsockname()[1]}/")
        message = ping(hook)
        deliver_due()
    message.refresh_from_db()
    assert message.state == State.PENDING and "connection failed" in message.attempts.get().error


def test_a_redirect_is_not_followed(hook, receiver):
    receiver.answer = answer_with(302, Location=receiver.url.replace("/hook", "/elsewhere"))
    message = ping(hook)
    deliver_due()
    assert [path for path, _, _ in receiver.received] == ["/hook"]
    assert "redirects are not followed" in message.attempts.get().error


def test_of_a_long_answer_only_the_beginning_is_read(hook, receiver):
    receiver.answer = answer_with(200, b"a\x00" + b"x" * 5_000_000)
    message = ping(hook)
    deliver_due()
    attempt = message.attempts.get()
    assert (len(attempt.excerpt), attempt.error) == (1024, "") and attempt.excerpt.startswith("a\ufffdx")


def test_an_answer_that_drips_is_cut_off_and_holds_up_nobody(hook, receiver, ours, monkeypatch):
    monkeypatch.setattr(delivery, "SECONDS_PER_ATTEMPT", 0.5)
    quick = Receiver()
    server = start(quick)
    other, _ = create_endpoint(tenant=ours.tenant, user=ours.user, url=quick.url, events=["job.failed"])
    receiver.answer = drip
    slow, fast = [ping(hook) for _ in range(10)], ping(other)
    delivery.deliver_due(seconds=0)  # one batch
    server.shutdown()
    server.server_close()
    fast.refresh_from_db()
    assert fast.state == State.DELIVERED
    assert len(receiver.received) == delivery.PER_ENDPOINT
    tried = [each for each in slow if each.attempts.exists()]
    assert len(tried) == delivery.PER_ENDPOINT
    assert all(each.attempts.get().error == "No complete answer within 0.5 seconds." for each in tried)


def test_a_claimed_message_is_left_alone(hook, receiver):
    message = ping(hook)
    assert delivery._claim_deliveries() == [message]
    assert delivery._claim_deliveries() == [] and deliver_due() == 0
    make_due(message)  # the worker died; its claim has run out
    assert deliver_due() == 1


def test_nothing_is_sent_to_an_endpoint_that_is_off(hook, receiver):
    ping(hook)
    Endpoint.objects.filter(pk=hook.pk).update(enabled=False)
    assert deliver_due() == 0 and receiver.received == []


# --- endpoints that fail ---------------------------------------------------------------------------------------------


def test_after_days_of_failures_it_is_switched_off_with_a_notice(hook, receiver, settings):
    receiver.answer = answer_with(503)
    settings.WEBHOOKS_DISABLE_AFTER_DAYS = 3
    first, waiting = ping(hook), ping(hook)
    Delivery.objects.filter(pk=waiting.pk).update(next_attempt_at=timezone.now() + timedelta(hours=1))
    deliver_due()
    hook.refresh_from_db()
    assert hook.enabled and hook.failing_since is not None
    Endpoint.objects.filter(pk=hook.pk).update(failing_since=timezone.now() - timedelta(days=3))
    make_due(first)
    deliver_due()
    hook.refresh_from_db()
    assert not hook.enabled and "for 3 days" in hook.disabled_reason and "503" in hook.disabled_reason
    assert set(Delivery.objects.filter(endpoint=hook).values_list("state", flat=True)) == {State.FAILED}
    deliver_due()
    (sent,) = outbox.outbox
    assert "switched off" in sent.subject and hook.url in sent.body and f"/webhooks/{hook.pk}/" in sent.body


def test_a_success_forgets_earlier_failures(hook, receiver):
    Endpoint.objects.filter(pk=hook.pk).update(failing_since=timezone.now() - timedelta(days=9))
    ping(hook)
    deliver_due()
    hook.refresh_from_db()
    assert hook.enabled and hook.failing_since is None


def test_an_endpoint_that_is_gone_is_switched_off_at_once(hook, receiver):
    receiver.answer = answer_with(410)
    ping(hook)
    deliver_due()
    hook.refresh_from_db()
    assert not hook.enabled and "410" in hook.disabled_reason


# --- addresses -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", REFUSED)
def test_no_address_but_public_ones_is_connected_to(hook, receiver, settings, monkeypatch, address):
    """As a number it is refused when it is set, and as what a name resolves to at the delivery."""
    settings.WEBHOOKS_ALLOW_PRIVATE = False
    number = address.partition("%")[0]
    assert addresses.fault_of(f"https://{f'[{number}]' if ':' in number else number}/", allow_private=False)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, port, *a, **k: [(family, 1, 6, "", (number, port))])

    async def connect(self, host, *args, **kwargs):
        raise AssertionError(f"connected to {host}")

    monkeypatch.setattr(addresses.httpcore.AnyIOBackend, "connect_tcp", connect)
    Endpoint.objects.filter(pk=hook.pk).update(url="http://hooks.example.org/")
    message = ping(hook)
    deliver_due()
    assert f"{number}, which is not on the public internet" in message.attempts.get().error


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_connected_to(hook, settings, monkeypatch, address):
    settings.WEBHOOKS_ALLOW_PRIVATE = False
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, port, *a, **k: [(family, 1, 6, "", (address, port))])
    connected = []

    async def connect(self, host, *args, **kwargs):
        connected.append(host)
        raise addresses.httpcore.ConnectError("as far as this test goes")

    monkeypatch.setattr(addresses.httpcore.AnyIOBackend, "connect_tcp", connect)
    Endpoint.objects.filter(pk=hook.pk).update(url="http://hooks.example.org/")
    ping(hook)
    deliver_due()
    assert connected == [address]


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("ftp://example.org/", "starts with"),
        ("example.org/hook", "starts with"),
        ("https://", "starts with"),
        ("https://me:pw@example.org/", "user name"),
        ("https://example.org/#a", "after #"),
        ("https://exa mple.org/", "spaces"),
        ("https://localhost/", "public internet"),
        ("https://intranet/", "public internet"),
        ("https://db.internal/", "public internet"),
        ("https://127.0.0.1:8000/", "public internet"),
        ("https://[::1]/", "public internet"),
        ("https://169.254.169.254/latest", "public internet"),
        ("https://example.org:99999/", "no address"),
        ("https://[bad/", "no address"),
        ("https://example.org/hook?x=1", ""),
    ],
)
def test_addresses_are_checked_when_they_are_set(url, says):
    fault = addresses.fault_of(url, allow_private=False)
    assert says in fault and bool(fault) == bool(says)


def test_a_name_that_leads_inside_is_refused_at_every_attempt(hook, receiver, settings, monkeypatch):
    settings.WEBHOOKS_ALLOW_PRIVATE = False
    port = int(receiver.url.split(":")[2].split("/")[0])
    asked = []

    def resolve(host, port, *args, **kwargs):
        asked.append(host)
        # One public address beside the private one, as in an attack.
        return [(socket.AF_INET, 1, 6, "", (each, port)) for each in ("93.184.215.14", "127.0.0.1")]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    Endpoint.objects.filter(pk=hook.pk).update(url=f"http://hooks.example.org:{port}/")
    message = ping(hook)
    deliver_due()
    assert receiver.received == [] and asked == ["hooks.example.org"]
    assert "127.0.0.1, which is not on the public internet" in message.attempts.get().error


def test_the_address_checked_is_the_address_connected_to(hook, receiver, monkeypatch):
    """A name that resolves otherwise the next moment gains nothing: it is resolved once."""
    port = int(receiver.url.split(":")[2].split("/")[0])
    answers = iter(["127.0.0.1", "127.0.0.2"])
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, port, *a, **k: [(socket.AF_INET, 1, 6, "", (next(answers), port))]
    )
    connected = []
    connect = addresses.httpcore.AnyIOBackend.connect_tcp

    async def watch(self, host, *args, **kwargs):
        connected.append(host)
        return await connect(self, host, *args, **kwargs)

    monkeypatch.setattr(addresses.httpcore.AnyIOBackend, "connect_tcp", watch)
    Endpoint.objects.filter(pk=hook.pk).update(url=f"http://hooks.example.org:{port}/")
    ping(hook)
    deliver_due()
    assert connected == ["127.0.0.1"]
    assert receiver.received[0][1]["host"] == f"hooks.example.org:{port}"


def test_settings_of_the_environment_lead_nowhere_else(hook, receiver, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    ping(hook)
    deliver_due()
    assert len(receiver.received) == 1


# --- mails -----------------------------------------------------------------------------------------------------------


def tell(ours, key="k", **changes):
    text = MailText(subject="A\nquota", lines=["First.", "Second."], link="http://localhost:8000/usage/")
    mail_members(tenant=ours.tenant, about="quota.warning", key=key, text=text, **changes)


def test_mails_go_once_to_every_member_who_wants_them(ours, theirs):
    other = create_user(username="ada", email="ada@example.org", password="x")
    add_member(tenant=ours.tenant, user=other)
    nameless = create_user(username="nobody", email="", password="x")
    add_member(tenant=ours.tenant, user=nameless)
    tell(ours)
    tell(ours)
    assert deliver_due() == 2
    assert sorted(sent.to[0] for sent in outbox.outbox) == ["ada@example.org", "ours@example.org"]
    sent = outbox.outbox[0]
    assert sent.subject == "[MARLaaS] A quota" and sent.content_subtype == "plain"
    assert sent.body.startswith("First.\n\nSecond.\n\nhttp://localhost:8000/usage/\n")
    assert "/notifications/" in sent.body
    assert set(Mail.objects.values_list("state", flat=True)) == {State.DELIVERED}


def test_whoever_left_hears_nothing_more(ours):
    tell(ours)
    Membership.objects.filter(user=ours.user).delete()
    deliver_due()
    assert outbox.outbox == [] and Mail.objects.get().state == State.FAILED


def test_a_mail_server_that_fails_is_tried_again(ours, monkeypatch):
    def refuse(self, fail_silently=False):
        raise ConnectionRefusedError("no mail server")

    tell(ours)
    with monkeypatch.context() as broken:
        broken.setattr(delivery.EmailMessage, "send", refuse)
        deliver_due()
    mail = Mail.objects.get()
    assert (mail.state, mail.tries) == (State.PENDING, 1) and "no mail server" in mail.error
    make_due(mail)
    deliver_due()
    mail.refresh_from_db()
    assert (mail.state, mail.error) == (State.DELIVERED, "") and len(outbox.outbox) == 1


# --- keeping ---------------------------------------------------------------------------------------------------------


def test_the_log_is_kept_for_thirty_days(hook, receiver):
    old, recent = ping(hook), ping(hook)
    deliver_due()
    Delivery.objects.filter(pk=old.pk).update(finished_at=timezone.now() - timedelta(days=31))
    deliver_due()
    assert list(Delivery.objects.filter(endpoint=hook)) == [recent]
    assert Attempt.objects.count() == 1


def test_a_test_message_wakes_the_worker(hook, ours, wakes, django_capture_on_commit_callbacks):
    with django_capture_on_commit_callbacks(execute=True):
        send_ping(tenant=ours.tenant, user=ours.user, endpoint_id=hook.pk)
    assert wakes == ["deliver"]
