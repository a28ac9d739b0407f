"""Forms of a tenant: API tokens, invitations, settings, deletion; of its visitors: accepting, acting as a member."""

from __future__ import annotations

from datetime import datetime, timedelta

from django import forms
from django.utils import timezone

from portal.tenants.models import Role, Scope

PASSWORD_HELP = "At least 8 characters, not a common word, not only digits."


class TokenForm(forms.Form):
    """A new API token."""

    name = forms.CharField(
        max_length=100,
        label="Name",
        help_text="Where it will be used, so that you know which one to revoke.",
        error_messages={"required": "Give the token a name."},
        widget=forms.TextInput(attrs={"placeholder": "nightly training", "autocomplete": "off"}),
    )
    scopes = forms.MultipleChoiceField(
        choices=Scope.choices,
        initial=[Scope.READ],
        label="May",
        error_messages={"required": "Choose what the token may do."},
        widget=forms.CheckboxSelectMultiple,
    )
    expires_in_days = forms.TypedChoiceField(
        choices=[(30, "30 days"), (90, "90 days"), (365, "1 year"), ("", "Never")],
        coerce=int,
        empty_value=None,
        initial=90,
        required=False,
        label="Expires in",
    )

    def expires_at(self) -> datetime | None:
        days = self.cleaned_data["expires_in_days"]
        return timezone.now() + timedelta(days=days) if days else None


class InvitationForm(forms.Form):
    """Somebody to invite."""

    email = forms.CharField(
        label="E-mail address",
        max_length=254,
        error_messages={"required": "Enter the address of whom you invite."},
        widget=forms.EmailInput(attrs={"placeholder": "ada@example.org", "autocomplete": "off"}),
    )
    role = forms.ChoiceField(choices=Role.choices, initial=Role.DEVELOPER, label="Role")


class NewAccountForm(forms.Form):
    """An account for an invited address; the rules are the service's."""

    username = forms.CharField(
        max_length=150,
        label="Username",
        help_text="How others in the tenant see you.",
        error_messages={"required": "Choose a username."},
        widget=forms.TextInput(attrs={"autocomplete": "username"}),
    )
    password = forms.CharField(
        strip=False,
        label="Password",
        help_text=PASSWORD_HELP,
        error_messages={"required": "Choose a password."},
        widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}),
    )


class TenantForm(forms.Form):
    """Settings of the tenant."""

    name = forms.CharField(max_length=200, label="Name", error_messages={"required": "Give the tenant a name."})
    require_mfa = forms.BooleanField(
        required=False,
        label="Require two-factor sign-in",
        help_text="Members without it have to set it up before they see anything else. API tokens are not affected.",
    )


class DeletionForm(forms.Form):
    """Typing the tenant's name."""

    confirmation = forms.CharField(
        max_length=200,
        label="Name of the tenant",
        error_messages={"required": "Type the name of the tenant."},
        widget=forms.TextInput(attrs={"autocomplete": "off"}),
    )


class ImpersonationForm(forms.Form):
    """Why, and how far."""

    reason = forms.CharField(
        max_length=500,
        label="Reason",
        help_text="Owners of the tenant read it in their audit log.",
        error_messages={"required": "Say why: it goes into the tenant's audit log."},
        widget=forms.Textarea(attrs={"rows": 3}),
    )
    allow_changes = forms.BooleanField(
        required=False, label="Allow changes", help_text="Otherwise you only look. Superusers only."
    )
