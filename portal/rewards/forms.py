"""The reward form: a grader with its options, a mix of named graders, or any reward as JSON.

The forms know only which option is called what; what an option may be is checked by the contract, in the service, and
its answer is shown at the field.
"""

from __future__ import annotations

import json
from typing import Any

from django import forms

from portal.errors import FieldError, ServiceError
from portal.pages.http import sentence
from portal.rewards.graders import KINDS, MIX_TYPE, MONO, SIMPLE, Kind, OptionsForm, grouped

JSON_TYPE = "json"
"""The choice beside the graders: the grader is written as JSON."""


class GraderForm(forms.Form):
    """One grader: its kind, and a form of options for each kind, of which the page shows the chosen kind's."""

    kinds = SIMPLE

    type = forms.ChoiceField(choices=grouped(SIMPLE.values()), initial="exact_match", label="Grader")

    def __init__(self, *args: Any, grader: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """``grader``: as JSON, to start from."""
        super().__init__(*args, **kwargs)
        self.options: dict[str, OptionsForm] = {}
        if grader is not None:
            self.initial["type"] = grader["type"]
        for kind in self.kinds.values():
            initial = grader if grader is not None and grader["type"] == kind.type else None
            prefix = f"{self.prefix}-{kind.type}" if self.prefix else kind.type
            data = self.data if self.is_bound else None
            self.options[kind.type] = kind.options_form(data, prefix=prefix, initial=initial)

    @property
    def choices(self) -> list[tuple[Kind, OptionsForm]]:
        """Every kind with its options, for the page."""
        return [(self.kinds[name], options) for name, options in self.options.items()]

    @property
    def chosen(self) -> OptionsForm | None:
        """The options of the kind chosen; None where the choice is none of the kinds."""
        return self.options.get(str(self["type"].value()))

    def is_valid(self) -> bool:
        chosen = self.chosen
        return super().is_valid() and (chosen is None or chosen.is_valid())

    @property
    def has_errors(self) -> bool:
        return bool(self.errors) or (self.chosen is not None and bool(self.chosen.errors))

    def to_grader(self) -> dict[str, Any]:
        """The chosen kind with its options."""
        chosen = self.chosen
        return {"type": self.cleaned_data["type"], **(chosen.to_options() if chosen else {})}


class PartForm(GraderForm):
    """One part of a mix."""

    part_name = forms.CharField(
        label="Name",
        max_length=40,
        help_text="Lower-case letters, digits and _.",
        error_messages={"required": "Give the part a name."},
        widget=forms.TextInput(attrs={"autocomplete": "off", "placeholder": "correct"}),
    )
    weight = forms.FloatField(
        label="Weight",
        initial=1.0,
        error_messages={"required": "Give it a weight."},
        widget=forms.NumberInput(attrs={"step": "any"}),
    )

    def to_part(self) -> dict[str, Any]:
        data = self.cleaned_data
        return {"name": data["part_name"], "weight": data["weight"], "grader": self.to_grader()}


class BasePartFormSet(forms.BaseFormSet):
    """Starts from the parts of a stored mix."""

    def __init__(self, *args: Any, stored: list[dict[str, Any]] | None = None, **kwargs: Any) -> None:
        self.stored = stored or []
        initial = [{"part_name": part["name"], "weight": part["weight"]} for part in self.stored]
        kwargs["initial"] = initial or None
        super().__init__(*args, **kwargs)

    def get_form_kwargs(self, index: int | None) -> dict[str, Any]:
        if index is None or index >= len(self.stored):
            return {}
        return {"grader": self.stored[index]["grader"]}


PartFormSet: Any = forms.formset_factory(
    PartForm, formset=BasePartFormSet, extra=0, min_num=0, max_num=16, can_delete=False
)


class RewardForm(GraderForm):
    """A new version of a reward function."""

    kinds = KINDS

    name = forms.CharField(
        max_length=100,
        label="Name",
        help_text="An existing name adds a new version; earlier versions stay as they are.",
        error_messages={"required": "Give the reward a name."},
        widget=forms.TextInput(attrs={"placeholder": "sums-correct", "autocomplete": "off"}),
    )
    type = forms.ChoiceField(
        choices=[*((kind.type, kind.title) for kind in KINDS.values()), (JSON_TYPE, "As JSON")],
        initial="exact_match",
        label="Grader",
    )
    grader_json = forms.CharField(
        required=False,
        strip=False,
        label="Grader as JSON",
        help_text="Every grader and option of the API, and mixes of them.",
        widget=forms.Textarea(
            attrs={**MONO, "rows": 14, "data-editor": "json", "placeholder": '{"type": "exact_match"}'}
        ),
    )
    timeout_seconds = forms.FloatField(
        initial=5.0,
        label="Time limit",
        help_text="For one grading. Past it the episode scores 0 and the page says so.",
        widget=forms.NumberInput(attrs={"step": "any"}),
    )

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        if data.get("type") == JSON_TYPE:
            try:
                data["grader"] = json.loads(data.get("grader_json") or "")
            except json.JSONDecodeError as error:
                self.add_error("grader_json", f"Line {error.lineno}, column {error.colno}: {error.msg}.")
            except (ValueError, RecursionError) as error:
                self.add_error("grader_json", f"This cannot be read as JSON: {error}.")
        return data


def blank_forms(spec: dict[str, Any] | None, *, name: str = "", parts: list[dict[str, Any]]) -> tuple[RewardForm, Any]:
    """Forms that start from a reward, or from nothing. ``parts``: what a mix begins with."""
    if spec is None:
        return RewardForm(initial={"name": name}), PartFormSet(prefix="parts", stored=parts)
    grader = spec["grader"]
    initial = {"name": name, "timeout_seconds": spec.get("timeout_seconds", 5.0)}
    if not shows(grader):
        initial["grader_json"] = pretty(grader)
        form = RewardForm(initial={**initial, "type": JSON_TYPE})
        return form, PartFormSet(prefix="parts", stored=parts)
    form = RewardForm(initial=initial, grader=grader)
    return form, PartFormSet(prefix="parts", stored=grader.get("parts") or parts)


def shows(grader: dict[str, Any]) -> bool:
    """Whether the form, rather than its JSON editor, can show a grader."""
    parts = grader.get("parts", []) if grader["type"] == MIX_TYPE else []
    return grader["type"] in KINDS and all(part["grader"]["type"] in SIMPLE for part in parts)


def to_spec(form: RewardForm, parts: Any) -> dict[str, Any]:
    """``engine.spec.RewardSpec`` as JSON."""
    timeout = form.cleaned_data["timeout_seconds"]
    if form.cleaned_data["type"] == JSON_TYPE:
        return {"grader": form.cleaned_data["grader"], "timeout_seconds": timeout}
    grader = form.to_grader()
    if grader["type"] == MIX_TYPE:
        grader["parts"] = [part.to_part() for part in parts]
    return {"grader": grader, "timeout_seconds": timeout}


def add_grader_errors(form: RewardForm, parts: Any, error: ServiceError) -> None:
    """Show the service's field errors (``grader.parts.1.grader.pattern``) at the fields they are about."""
    for item in error.fields:
        target, field = _locate(form, parts, item.field.split("."))
        if field == "grader_json":
            inside = item.field.removeprefix("grader").removeprefix(".")
            target.add_error(field, sentence(FieldError(inside, item.message), label=inside or "The grader"))
        else:
            label = str(target[field].label) if field else item.field
            target.add_error(field, sentence(FieldError(item.field, item.message), label=label))
    if not error.fields:
        form.add_error(None, f"{error.message} {error.hint}".strip())


def _locate(form: RewardForm, parts: Any, path: list[str]) -> tuple[forms.Form, str | None]:
    """The form and its field that ``path`` is about; None where no single field is."""
    match path:
        case [name] if name in form.fields and name != "grader_json":
            return form, name
        case ["grader", *_] if form.cleaned_data["type"] == JSON_TYPE:
            return form, "grader_json"
        case ["grader", "parts", index, name, *_] if name in {"name", "weight"}:
            return parts[int(index)], {"name": "part_name", "weight": "weight"}[name]
        case ["grader", "parts", index, "grader", *rest]:
            return _locate_option(parts[int(index)], rest)
        case ["grader", *rest]:
            return _locate_option(form, rest)
    return form, None


def _locate_option(form: GraderForm, path: list[str]) -> tuple[forms.Form, str | None]:
    """An option's field; where a rule is about a grader as a whole, its first field, or else the grader's choice."""
    chosen = form.chosen
    if chosen is None:
        return form, "type"
    if path and path[0] in chosen.fields:
        return chosen, path[0]
    return (chosen, next(iter(chosen.fields))) if chosen.fields else (form, "type")


def pretty(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)
