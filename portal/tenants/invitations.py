"""Writes of invitations: how people come to an account and to a tenant.

Invariants: a link works once, until it expires, is revoked or is replaced by a newer one; it admits only the e-mail
address it was made for; accepting holds the invitation's lock, so two visitors cannot both use it.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import uuid
from dataclasses import dataclass
from datetime import timedelta
from smtplib import SMTPException

from allauth.account.models import EmailAddress
from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth.models import User
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.core.mail import send_mail
from django.db import transaction
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils import timezone

from portal.audit.services import record_change
from portal.errors import Conflict, FieldError, InvalidInput, NotAllowed
from portal.tenants.models import Invitation, Membership, Role, Tenant
from portal.tenants.selectors import find_invitation, get_open_invitation, list_open_invitations
from portal.tenants.services import create_user, require_owner

logger = logging.getLogger(__name__)

VALID_FOR = timedelta(days=7)
OPERATOR_PERMISSION = "tenants.add_invitation"
GONE = "This invitation was used, revoked or replaced, or it has expired."
GONE_HINT = "Ask whoever invited you to send it again."


@dataclass(frozen=True)
class Sent:
    """An invitation with its link, which is known only now."""

    invitation: Invitation
    link: str
    mailed: bool
    """The mail was handed over; the mail server may still lose it."""


def create_invitation(*, tenant: Tenant, user: User, email: str, role: str, base_url: str) -> Sent:
    """Invite an address and send it the link. ``base_url`` is where people reach the portal, with a slash at the end.

    Raises InvalidInput, Conflict where the address has an open invitation, NotAllowed, Http404.
    """
    require_owner(tenant=tenant, user=user)
    return _invite(tenant=tenant, user=user, email=email, role=role, base_url=base_url)


def invite_as_operator(*, tenant: Tenant, user: User, email: str, role: str, base_url: str) -> Sent:
    """An admin invites to a tenant they are no member of, above all its first owner. An open invitation of the address
    is revoked: it is how an admin sends one again.

    Raises InvalidInput, Conflict, NotAllowed.
    """
    if not (user.is_staff and user.has_perm(OPERATOR_PERMISSION)):
        raise NotAllowed(
            "You may not invite people.", hint="A superuser can give you the permission to add invitations."
        )
    return _invite(tenant=tenant, user=user, email=email, role=role, base_url=base_url, replace=True)


def _invite(*, tenant: Tenant, user: User, email: str, role: str, base_url: str, replace: bool = False) -> Sent:
    email = email.strip().lower()
    errors = []
    try:
        Invitation._meta.get_field("email").clean(email, None)
    except ValidationError:
        errors.append(FieldError("email", "Enter an e-mail address such as ada@example.org."))
    if role not in Role.values:
        errors.append(FieldError("role", f"must be one of {', '.join(Role.values)}"))
    if not errors and Membership.objects.filter(tenant=tenant, user__email__iexact=email).exists():
        errors.append(FieldError("email", "Whoever has this address is a member already."))
    if errors:
        raise InvalidInput("Nobody was invited.", fields=errors)
    secret = secrets.token_urlsafe(32)
    with transaction.atomic():
        tenant = Tenant.objects.select_for_update().get(pk=tenant.pk)
        if tenant.delete_at is not None:
            raise Conflict(f"{tenant.name} is to be deleted.", hint="Undo the deletion first.")
        known = list_open_invitations(tenant).filter(email=email).first()
        if known is not None and replace:
            _revoke(known, user)
        elif known is not None:
            raise Conflict(f"{email} is invited already.", hint="Send that invitation again, or revoke it first.")
        now = timezone.now()
        invitation = Invitation.objects.create(
            tenant=tenant,
            email=email,
            role=role,
            hash=_digest(secret),
            created_by_id=user.pk,
            sent_at=now,
            expires_at=now + VALID_FOR,
        )
        after = {"role": role, "expires_at": invitation.expires_at}
        record_change(tenant=tenant, user=user, action="invitation.created", target=invitation, after=after)
    return _send(invitation, secret, user, base_url)


def resend_invitation(*, tenant: Tenant, user: User, invitation_id: uuid.UUID, base_url: str) -> Sent:
    """A new link for the same address, valid for the whole time again; the old link stops working."""
    secret = secrets.token_urlsafe(32)
    with transaction.atomic():
        invitation = _lock_open(tenant, invitation_id)
        require_owner(tenant=tenant, user=user)
        before = {"expires_at": invitation.expires_at}
        invitation.hash = _digest(secret)
        invitation.sent_at = timezone.now()
        invitation.expires_at = invitation.sent_at + VALID_FOR
        invitation.save(update_fields=["hash", "sent_at", "expires_at"])
        after = {"expires_at": invitation.expires_at}
        record_change(
            tenant=tenant, user=user, action="invitation.resent", target=invitation, before=before, after=after
        )
    return _send(invitation, secret, user, base_url)


@transaction.atomic
def revoke_invitation(*, tenant: Tenant, user: User, invitation_id: uuid.UUID) -> None:
    """Its link stops working."""
    invitation = _lock_open(tenant, invitation_id)
    require_owner(tenant=tenant, user=user)
    _revoke(invitation, user)


@transaction.atomic
def accept_as_new_user(*, secret: str, username: str, password: str) -> Membership:
    """Make an account for the invited address and join. Raises InvalidInput (fields), Conflict for a dead link."""
    invitation = _lock_by_secret(secret)
    if find_account(invitation.email) is not None:
        raise Conflict("There is an account for this address.", hint="Sign in with it to accept the invitation.")
    username = username.strip()
    user = get_user_model()(username=username, email=invitation.email)
    errors = []
    try:
        user.clean_fields(exclude=["password"])
        if get_user_model().objects.filter(username__iexact=username).exists():
            raise ValidationError({"username": "This name is taken; choose another one."})
    except ValidationError as error:
        errors += [FieldError(name, text) for name, texts in error.message_dict.items() for text in texts]
    try:
        validate_password(password, user)
    except ValidationError as error:
        errors += [FieldError("password", text) for text in error.messages]
    if errors:
        raise InvalidInput("The account was not made.", fields=errors)
    user = create_user(username=username, email=invitation.email, password=password)
    EmailAddress.objects.create(user=user, email=invitation.email, verified=True, primary=True)
    return _join(invitation, user)


@transaction.atomic
def accept_as_user(*, secret: str, user: User) -> Membership:
    """Join with an account that exists. Raises Conflict where it has another address, or for a dead link."""
    invitation = _lock_by_secret(secret)
    if user.email.lower() != invitation.email:
        raise Conflict(
            f"This invitation is for {invitation.email}; you are signed in as {user.get_username()}.",
            hint="Sign out, then open the link again.",
        )
    return _join(invitation, user)


def find_account(email: str) -> User | None:
    """The active account with this address."""
    return get_user_model().objects.filter(email__iexact=email, is_active=True).first()


def _join(invitation: Invitation, user: User) -> Membership:
    membership, created = Membership.objects.get_or_create(
        tenant=invitation.tenant, user_id=user.pk, defaults={"role": invitation.role}
    )
    invitation.accepted_at = timezone.now()
    invitation.save(update_fields=["accepted_at"])
    record_change(
        tenant=invitation.tenant,
        user=user,
        action="invitation.accepted",
        target=invitation,
        after={"role": membership.role, "user": user.get_username(), "joined": created},
    )
    return membership


def _revoke(invitation: Invitation, user: User) -> None:
    invitation.revoked_at = timezone.now()
    invitation.save(update_fields=["revoked_at"])
    before = {"role": invitation.role}
    record_change(tenant=invitation.tenant, user=user, action="invitation.revoked", target=invitation, before=before)


def _lock_open(tenant: Tenant, invitation_id: uuid.UUID) -> Invitation:
    Invitation.objects.select_for_update().filter(tenant=tenant, pk=invitation_id).first()
    return get_open_invitation(tenant, invitation_id)


def _lock_by_secret(secret: str) -> Invitation:
    Invitation.objects.select_for_update().filter(hash=_digest(secret)).first()
    invitation = find_invitation(secret)
    if invitation is None:
        raise Conflict(GONE, hint=GONE_HINT)
    return invitation


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _send(invitation: Invitation, secret: str, user: User, base_url: str) -> Sent:
    link = base_url.rstrip("/") + reverse("tenants:invitation-accept", args=[secret])
    context = {"invitation": invitation, "tenant": invitation.tenant, "inviter": user, "link": link}
    mailed = True
    try:
        send_mail(
            subject=" ".join(f"{user.get_username()} invites you to {invitation.tenant.name} on MARLaaS".split()),
            message=render_to_string("tenants/mail/invitation.txt", context),
            from_email=settings.DEFAULT_FROM_EMAIL,
            recipient_list=[invitation.email],
        )
    except (SMTPException, OSError) as error:
        logger.warning("The mail of invitation %s could not be sent: %s", invitation.pk, error)
        mailed = False
    return Sent(invitation=invitation, link=link, mailed=mailed)
