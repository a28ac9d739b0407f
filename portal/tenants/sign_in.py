"""How allauth signs people in: nobody signs up by themselves, and failed attempts reach django-axes."""

from typing import Any

from allauth.account.adapter import DefaultAccountAdapter
from allauth.account.forms import LoginForm
from django.http import HttpRequest


class InvitationOnlyAdapter(DefaultAccountAdapter):
    """Accounts are made by the operator (Django admin), never by a visitor."""

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        return False


class SignInForm(LoginForm):
    """allauth's form, handing axes what was typed under the name axes looks for."""

    def user_credentials(self) -> dict[str, Any]:
        credentials = super().user_credentials()
        credentials["login"] = credentials.get("email") or credentials.get("username")
        return credentials
