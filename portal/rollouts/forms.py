"""What to look for among the rollouts of a job; the same for pages and API."""

from __future__ import annotations

from typing import Any

from django import forms

from portal.rollouts.selectors import Filters

LARGEST = 2**31 - 1


class FilterForm(forms.Form):
    """Everything is optional; what is left out does not narrow."""

    step = forms.IntegerField(
        required=False, min_value=1, max_value=LARGEST, label="Step", error_messages={"invalid": "A whole number."}
    )
    min_reward = forms.FloatField(required=False, label="Reward from", error_messages={"invalid": "A number."})
    max_reward = forms.FloatField(required=False, label="to", error_messages={"invalid": "A number."})
    q = forms.CharField(
        required=False,
        max_length=200,
        label="Text",
        widget=forms.TextInput(attrs={"placeholder": "in prompt, answer or reason", "type": "search"}),
    )
    failed = forms.BooleanField(required=False, label="Reward errors only")
    prompt = forms.RegexField(r"^[0-9a-f]{32}$", required=False, widget=forms.HiddenInput)
    before = forms.IntegerField(required=False, min_value=1, max_value=LARGEST, widget=forms.HiddenInput)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name in ("min_reward", "max_reward"):
            self.fields[name].widget.attrs["step"] = "any"

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        low, high = data.get("min_reward"), data.get("max_reward")
        if low is not None and high is not None and low > high:
            self.add_error("max_reward", f"Not below {low:g}.")
        return data

    def to_filters(self) -> Filters:
        data = self.cleaned_data
        return Filters(
            step=data["step"],
            min_reward=data["min_reward"],
            max_reward=data["max_reward"],
            errors=data["failed"],
            text=data["q"],
            prompt=data["prompt"],
        )
