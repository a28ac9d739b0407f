"""The test bench: what a reward is tried on."""

from __future__ import annotations

from typing import Any

from django import forms

from portal.base_models.selectors import list_base_models
from portal.datasets.selectors import list_dataset_versions
from portal.errors import FieldError, ServiceError
from portal.pages.http import sentence
from portal.rewards.trial_services import Sampling, TrialRows
from portal.tenants.models import Tenant

SOURCES = [
    ("paste", "Pasted text"),
    ("line", "One row"),
    ("rows", "Many rows"),
]
FORM_ID = "reward"
"""The bench stands beside the reward's form and is sent with it."""
OWN_NAMES = {"row": "prompt", "row.prompt": "prompt", "row.answer": "answer", "completions": "completion"}
"""Field of the service -> field of the form, where they differ."""


class TrialForm(forms.Form):
    """Of its fields the page shows those the source needs; the others are not read."""

    source = forms.ChoiceField(choices=SOURCES, initial="paste")
    prompt = forms.CharField(
        required=False, strip=False, label="Prompt", widget=forms.Textarea(attrs={"rows": 2}), initial="What is 2 + 2?"
    )
    answer = forms.CharField(required=False, strip=False, label="Answer of the row", initial="4")
    metadata = forms.JSONField(
        required=False,
        label="Metadata of the row",
        help_text="What else the row carries, as JSON.",
        widget=forms.Textarea(attrs={"rows": 2, "class": "mono", "spellcheck": "false", "placeholder": "{}"}),
    )
    completion = forms.CharField(
        required=False,
        strip=False,
        label="Completion to score",
        widget=forms.Textarea(attrs={"rows": 3}),
        initial="2 + 2 is 4",
    )
    dataset_version = forms.ChoiceField(required=False, label="Dataset")
    line = forms.IntegerField(required=False, initial=1, label="Line")
    line_completion = forms.CharField(
        required=False,
        strip=False,
        label="Completion to score",
        help_text="Leave it empty to sample fresh ones.",
        widget=forms.Textarea(attrs={"rows": 3}),
    )
    rows = forms.IntegerField(required=False, initial=20, label="Rows")
    base_model = forms.ChoiceField(required=False, label="Base model")
    samples = forms.IntegerField(required=False, initial=4, label="Samples of each")
    max_tokens = forms.IntegerField(required=False, initial=128, label="Tokens of each")
    temperature = forms.FloatField(
        required=False, initial=1.0, label="Temperature", widget=forms.NumberInput(attrs={"step": "any"})
    )
    seed = forms.IntegerField(required=False, initial=0, label="Seed", help_text="Another seed draws other rows.")
    system_prompt = forms.CharField(
        required=False, strip=False, label="System prompt", widget=forms.Textarea(attrs={"rows": 2})
    )

    def __init__(self, tenant: Tenant, *args: Any, **kwargs: Any) -> None:
        kwargs["prefix"] = "try"
        super().__init__(*args, **kwargs)
        self.versions = {str(version.pk): version for version in list_dataset_versions(tenant)[:200]}
        datasets = self.fields["dataset_version"]
        datasets.choices = [(pk, f"{v} · {v.rows} rows") for pk, v in self.versions.items()]  # type: ignore[attr-defined]
        models = self.fields["base_model"]
        models.choices = [(model.pk, model.pk) for model in list_base_models()]  # type: ignore[attr-defined]
        for field in self.fields.values():
            field.widget.attrs["form"] = FORM_ID

    def to_rows(self) -> TrialRows:
        """What is tried; an empty number is left to the service's default or named by it."""
        data = self.cleaned_data
        if data["source"] == "paste":
            row = {"prompt": data["prompt"], "answer": data["answer"], "metadata": data["metadata"]}
            return TrialRows(row=row, completions=[data["completion"]])
        version = self.versions.get(data["dataset_version"])
        if data["source"] == "rows":
            return TrialRows(dataset_version=version, count=data["rows"] or 0)
        given = [data["line_completion"]] if data["line_completion"] else []
        return TrialRows(dataset_version=version, line=data["line"] or 0, completions=given)

    def to_sampling(self) -> Sampling:
        data = self.cleaned_data
        given = {name: data[name] for name in ("samples", "max_tokens", "temperature", "seed")}
        return Sampling(
            base_model_id=data["base_model"],
            system_prompt=data["system_prompt"],
            **{name: value for name, value in given.items() if value is not None},
        )

    def add_trial_errors(self, error: ServiceError) -> None:
        """Show what the service refuses at the fields, in their words."""
        for item in error.fields:
            name = OWN_NAMES.get(item.field, item.field)
            name = "completion" if item.field.startswith("completions") else name
            name = "metadata" if item.field.startswith("row.") and name not in self.fields else name
            if name == "completion" and self.cleaned_data["source"] != "paste":
                name = "line_completion"
            if name == "prompt" and self.cleaned_data["source"] != "paste":
                name = "dataset_version"
                item = FieldError(name, "Choose a dataset; upload one first where there is none.")
            known = name in self.fields
            label = str(self.fields[name].label) if known else item.field
            self.add_error(name if known else None, sentence(item, label=label))
        if not error.fields:
            self.add_error(None, f"{error.message} {error.hint}".strip())
