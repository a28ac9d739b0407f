"""How allauth signs people in: by invitation only, failed attempts reach django-axes, a lock-out says how long."""

from __future__ import annotations

from typing import Any

from allauth.account.adapter import DefaultAccountAdapter
from allauth.account.forms import (
    AddEmailForm,
    ChangePasswordForm,
    LoginForm,
    ReauthenticateForm,
    ResetPasswordForm,
    ResetPasswordKeyForm,
)
from allauth.account.internal.flows.reauthentication import reauthenticate_by_password
from allauth.mfa.base.forms import AuthenticateForm
from allauth.mfa.base.forms import ReauthenticateForm as ReauthenticateByCodeForm
from allauth.mfa.totp.forms import ActivateTOTPForm
from axes.helpers import get_cool_off
from django.contrib.auth import login
from django.contrib.auth.models import User
from django.forms import Form
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone

from portal.tenants.forms import PASSWORD_HELP


class InvitationOnlyAdapter(DefaultAccountAdapter):
    """Accounts are made by accepting an invitation (``invitations.py``), or by the operator."""

    error_messages = {
        **DefaultAccountAdapter.error_messages,
        "username_password_mismatch": "Username or password is not right.",
        "email_password_mismatch": "E-mail address or password is not right.",
        "incorrect_password": "The password is not right.",
        "enter_current_password": "The current password is not right.",
        "incorrect_code": "The code is not right; it may have changed meanwhile.",
        "email_taken": "The address belongs to another account.",
    }

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        return False


class SignInForm(LoginForm):
    """allauth's form, handing axes what was typed under the name axes looks for."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        word_fields(self, login="Username or e-mail address", password="Password")

    def user_credentials(self) -> dict[str, Any]:
        credentials = super().user_credentials()
        credentials["login"] = credentials.get("email") or credentials.get("username")
        return credentials


class NewPasswordForm(ChangePasswordForm):
    """allauth's form of the password page, in the words of the other pages."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        word_fields(self, oldpassword="Current password", password1="New password", password2="New password, once more")


class ConfirmForm(ReauthenticateForm):
    """allauth's form that asks for the password again."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        word_fields(self, password="Password")


class NewAddressForm(AddEmailForm):
    """allauth's form of the e-mail page."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        word_fields(self, email="New address")


class ForgottenPasswordForm(ResetPasswordForm):
    """allauth's form that asks where to send the link."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        word_fields(self, email="E-mail address")


class PasswordByLinkForm(ResetPasswordKeyForm):
    """allauth's form behind the link, in the words of the other pages."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        word_fields(self, password1="New password", password2="New password, once more")


class SecondFactorForm(AuthenticateForm):
    """allauth's form that asks for the second factor at sign-in."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        word_code(self, "Code of your authenticator app, or a recovery code")


class ConfirmCodeForm(ReauthenticateByCodeForm):
    """allauth's form that asks for the second factor again."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        word_code(self, "Code of your authenticator app, or a recovery code")


class SetUpAppForm(ActivateTOTPForm):
    """allauth's form that takes the app's first code."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        word_code(self, "2. Enter the code the app shows")


def word_code(form: Form, label: str) -> None:
    """Codes, those for recovery too, are digits: phones offer them first."""
    word_fields(form, code=label)
    form.fields["code"].widget.attrs["inputmode"] = "numeric"


def word_fields(form: Form, **labels: str) -> None:
    """Our labels, the same help for a new password everywhere, and no placeholder that only repeats the label."""
    for name, label in labels.items():
        form.fields[name].label = label
        form.fields[name].widget.attrs.pop("placeholder", None)
    if "password1" in labels:
        form.fields["password1"].help_text = PASSWORD_HELP


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
