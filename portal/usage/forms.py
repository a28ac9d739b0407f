"""The form with which admins change a tenant's quotas."""

from __future__ import annotations

from typing import Any

from django import forms

from portal.usage.models import TenantQuotas
from portal.usage.services import LARGEST, OPTIONAL_LIMITS, TENANT_LIMITS


class QuotasForm(forms.ModelForm):
    """All limits of a tenant, those on ``Tenant`` too, and the reason for changing them."""

    max_active_jobs = forms.IntegerField(
        min_value=0, help_text="Queued, preparing or running; paused ones do not count."
    )
    max_dataset_bytes = forms.IntegerField(min_value=0, max_value=LARGEST, help_text="Size of one upload.")
    max_dataset_rows = forms.IntegerField(min_value=0, help_text="Rows of one dataset version.")
    max_reward_trials_per_day = forms.IntegerField(
        min_value=0, label="Max reward tests per day", help_text="Begun from 0:00 to 24:00 UTC."
    )
    reason = forms.CharField(
        max_length=1000, widget=forms.Textarea(attrs={"rows": 3}), help_text="Kept in the history; the tenant sees it."
    )

    class Meta:
        model = TenantQuotas
        fields = [*OPTIONAL_LIMITS]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name in TENANT_LIMITS:
            self.fields[name].initial = getattr(self.instance.tenant, name)

    def limits(self) -> dict[str, int | None]:
        return {name: self.cleaned_data[name] for name in (*TENANT_LIMITS, *OPTIONAL_LIMITS)}
