"""How allauth signs people in: by invitation only, failed attempts reach django-axes, a lock-out says how long."""

from __future__ import annotations

from typing import Any

from allauth.account.adapter import DefaultAccountAdapter
from allauth.account.forms import LoginForm
from allauth.account.internal.flows.reauthentication import reauthenticate_by_password
from axes.helpers import get_cool_off
from django.contrib.auth import login
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone


class InvitationOnlyAdapter(DefaultAccountAdapter):
    """Accounts are made by accepting an invitation (``invitations.py``), or by the operator."""

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        return False


class SignInForm(LoginForm):
    """allauth's form, handing axes what was typed under the name axes looks for."""

    def user_credentials(self) -> dict[str, Any]:
        credentials = super().user_credentials()
        credentials["login"] = credentials.get("email") or credentials.get("username")
        return credentials


def sign_in_newcomer(request: HttpRequest, user: User) -> None:
    """Somebody who has just chosen a password: it is not asked for again before a second factor is set up."""
    login(request, user, backend="django.contrib.auth.backends.ModelBackend")
    reauthenticate_by_password(request)


def answer_lock_out(
    request: HttpRequest, original_response: HttpResponse | None = None, credentials: dict[str, Any] | None = None
) -> HttpResponse:
    """For django-axes: too many failed attempts. Each further one starts the wait again."""
    wait = get_cool_off(request)
    seconds = int(wait.total_seconds()) if wait else 0
    context = {"until": timezone.now() + wait if wait else None, "minutes": -(-seconds // 60)}
    response = render(request, "account/locked_out.html", context, status=429)
    if seconds:
        response["Retry-After"] = str(seconds)
    return response
