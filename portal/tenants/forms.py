"""The form for API tokens."""

from __future__ import annotations

from datetime import datetime, timedelta

from django import forms
from django.utils import timezone

from portal.tenants.models import Scope


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
