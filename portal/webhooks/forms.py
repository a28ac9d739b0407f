"""Forms of webhook endpoints and of notification preferences."""

from __future__ import annotations

from typing import Any

from django import forms
from django.conf import settings

from portal.webhooks.models import EventType, JobScope


class EndpointForm(forms.Form):
    url = forms.CharField(
        max_length=2000,
        label="Address",
        help_text="Messages are sent there by POST.",
        error_messages={"required": "Give the address that messages are sent to."},
        widget=forms.URLInput(attrs={"placeholder": "https://example.org/marlaas", "autocomplete": "off"}),
    )
    description = forms.CharField(
        max_length=200, required=False, label="Description", widget=forms.TextInput(attrs={"autocomplete": "off"})
    )
    events = forms.MultipleChoiceField(
        choices=EventType.choices,
        label="Tell of",
        error_messages={"required": "Choose at least one event."},
        widget=forms.CheckboxSelectMultiple,
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not settings.WEBHOOKS_ALLOW_PRIVATE:
            self.fields["url"].help_text += " It must be reachable on the public internet."


class PreferenceForm(forms.Form):
    on_success = forms.BooleanField(required=False, label="A job succeeded")
    on_failure = forms.BooleanField(required=False, label="A job failed")
    jobs = forms.ChoiceField(choices=JobScope.choices, label="Of which jobs", widget=forms.RadioSelect)
    on_quota = forms.BooleanField(required=False, label="80 % of a quota is used, or all of it")
