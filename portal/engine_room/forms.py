"""Forms of the engine page."""

from __future__ import annotations

from django import forms

from portal.engine_room.services import MOST_WORKERS


class DrainForm(forms.Form):
    reason = forms.CharField(
        max_length=300,
        label="Reason",
        help_text="Tenants see it on their waiting jobs, e.g. “new GPUs are built in until about 14:00 UTC”.",
    )


class ScaleForm(forms.Form):
    rollout_workers = forms.IntegerField(min_value=1, max_value=MOST_WORKERS, label="Rollout workers")
