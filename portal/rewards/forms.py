"""The reward form: a grader with its options, or a mix of named graders.

The form knows only which field belongs to which option of ``engine.spec``; what an option may be is checked there, by
the service, and its answer is shown at the field.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from django import forms

from portal.errors import FieldError, ServiceError
from portal.pages.http import sentence


@dataclass(frozen=True)
class GraderChoice:
    """A kind of grader as the page explains it."""

    type: str
    title: str
    text: str
    icon: str
    fields: dict[str, str]
    """Option of the grader -> field of the form."""


GRADERS = [
    GraderChoice(
        "exact_match",
        "Exact match",
        "1 where the completion equals the row's answer.",
        "equal",
        {"ignore_case": "exact_ignore_case", "strip": "strip"},
    ),
    GraderChoice(
        "numeric",
        "Number",
        "1 where the last number in the completion equals the answer.",
        "calculator",
        {"tolerance": "tolerance"},
    ),
    GraderChoice(
        "maths",
        "Maths",
        "1 where completion and answer are mathematically equivalent, LaTeX or plain.",
        "sigma",
        {},
    ),
    GraderChoice(
        "regex",
        "Pattern",
        "1 where a regular expression is found in the completion.",
        "regex",
        {
            "pattern": "pattern",
            "full": "full",
            "ignore_case": "regex_ignore_case",
            "group_equals_answer": "group_equals_answer",
        },
    ),
    GraderChoice(
        "json_schema",
        "JSON schema",
        "1 where the completion is JSON that satisfies a schema.",
        "braces",
        {"json_schema": "json_schema"},
    ),
    GraderChoice(
        "brevity",
        "Brevity",
        "1 for short completions, falling to 0 at a limit. Use it inside a mix.",
        "ruler",
        {"target": "target", "limit": "limit"},
    ),
]
MIX = GraderChoice("mix", "Weighted mix", "The weighted mean of several named graders.", "layers", {})
BY_TYPE = {choice.type: choice for choice in GRADERS}
BY_FORM_FIELD = {field: (c.type, option) for c in GRADERS for option, field in c.fields.items()}

MONO = {"class": "mono", "spellcheck": "false", "autocomplete": "off"}


class GraderForm(forms.Form):
    """One grader: its kind, and the options of all kinds, of which the page shows the chosen kind's."""

    type = forms.ChoiceField(choices=[(c.type, c.title) for c in GRADERS], initial="exact_match", label="Grader")
    exact_ignore_case = forms.BooleanField(required=False, label="Ignore upper and lower case")
    strip = forms.BooleanField(required=False, initial=True, label="Ignore white space around both")
    tolerance = forms.FloatField(
        required=False, initial=1e-6, label="Tolerance", help_text="Largest difference that still counts as equal."
    )
    pattern = forms.CharField(
        required=False,
        strip=False,
        label="Regular expression",
        help_text=r"Python's syntax, for example <answer>(\d+)</answer>",
        widget=forms.TextInput(attrs=MONO),
    )
    full = forms.BooleanField(required=False, label="The whole completion must match")
    regex_ignore_case = forms.BooleanField(required=False, label="Ignore upper and lower case")
    group_equals_answer = forms.BooleanField(
        required=False,
        label="The first group must equal the answer",
        help_text="Without a group in the pattern, the whole match must.",
    )
    json_schema = forms.JSONField(
        required=False,
        label="JSON schema",
        help_text="Draft 2020-12.",
        widget=forms.Textarea(attrs={**MONO, "rows": 8, "placeholder": '{"type": "object", "required": ["answer"]}'}),
    )
    target = forms.IntegerField(required=False, initial=100, label="Full score up to")
    limit = forms.IntegerField(required=False, initial=400, label="No score from")

    def to_grader(self) -> dict[str, Any]:
        """The chosen kind with its options; an empty option is left out, so that the service can name it."""
        kind = self.cleaned_data["type"]
        options = {option: self.cleaned_data[field] for option, field in BY_TYPE[kind].fields.items()}
        return {"type": kind, **{option: value for option, value in options.items() if value not in (None, "")}}

    def field_for(self, option: str) -> str | None:
        return BY_TYPE[self.cleaned_data["type"]].fields.get(option)


def grader_initial(grader: dict[str, Any]) -> dict[str, Any]:
    """A stored grader as initial values of the form."""
    fields = BY_TYPE[grader["type"]].fields if grader["type"] in BY_TYPE else {}
    values = {field: grader[option] for option, field in fields.items() if option in grader}
    return {"type": grader["type"], **values}


class PartForm(GraderForm):
    """One part of a mix."""

    part_name = forms.CharField(
        label="Name",
        max_length=40,
        help_text="Lower-case letters, digits and _.",
        error_messages={"required": "Give the part a name."},
        widget=forms.TextInput(attrs={"autocomplete": "off", "placeholder": "correct"}),
    )
    weight = forms.FloatField(label="Weight", initial=1.0, error_messages={"required": "Give it a weight."})


PartFormSet = forms.formset_factory(PartForm, extra=0, min_num=0, max_num=16, can_delete=False)


class RewardForm(GraderForm):
    """A new version of a reward function."""

    name = forms.CharField(
        max_length=100,
        label="Name",
        help_text="An existing name adds a new version; earlier versions stay as they are.",
        error_messages={"required": "Give the reward a name."},
        widget=forms.TextInput(attrs={"placeholder": "sums-correct", "autocomplete": "off"}),
    )
    type = forms.ChoiceField(
        choices=[(c.type, c.title) for c in [*GRADERS, MIX]], initial="exact_match", label="Grader"
    )
    timeout_seconds = forms.FloatField(
        initial=5.0,
        label="Time limit",
        help_text="For one grading. Past it the episode scores 0 and the page says so.",
    )


def to_spec(form: RewardForm, parts: Any) -> dict[str, Any]:
    """``engine.spec.RewardSpec`` as JSON."""
    timeout = form.cleaned_data["timeout_seconds"]
    if form.cleaned_data["type"] != MIX.type:
        return {"grader": form.to_grader(), "timeout_seconds": timeout}
    mix = [
        {"name": part.cleaned_data["part_name"], "weight": part.cleaned_data["weight"], "grader": part.to_grader()}
        for part in parts
    ]
    return {"grader": {"type": MIX.type, "parts": mix}, "timeout_seconds": timeout}


def add_grader_errors(form: RewardForm, parts: Any, error: ServiceError) -> None:
    """Show the service's field errors (``grader.parts.1.grader.pattern``) at the fields they are about."""
    for item in error.fields:
        target, field = _locate(form, parts, item.field.split("."))
        label = str(target[field].label) if field else item.field
        target.add_error(field, sentence(FieldError(item.field, item.message), label=label))
    if not error.fields:
        form.add_error(None, f"{error.message} {error.hint}".strip())


def _locate(form: RewardForm, parts: Any, path: list[str]) -> tuple[forms.Form, str | None]:
    """The form and its field that ``path`` is about; None where no single field is."""
    match path:
        case [name] if name in form.fields:
            return form, name
        case ["grader", "parts", index, name, *_] if name in {"name", "weight"}:
            return parts[int(index)], {"name": "part_name", "weight": "weight"}[name]
        case ["grader", "parts", index, "grader", option, *_]:
            return parts[int(index)], parts[int(index)].field_for(option)
        case ["grader", option, *_] if form.cleaned_data["type"] != MIX.type:
            return form, form.field_for(option)
    return form, None


def pretty(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)
