"""The vocabulary of graders, read from the contract: which there are, and a form for the options of each.

A grader that is added to ``engine.spec`` has its form at once: its options' types, defaults, limits and docstrings say
all that a page needs. Here stand only the words and icons that read better than what the contract says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from types import UnionType
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

from django import forms
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from engine.spec import Grader, MixPart

MIX_TYPE = "mix"
LONG_TEXT = 1000
"""A text option that may be longer gets an area of several lines."""
MONO = {"class": "mono", "spellcheck": "false", "autocomplete": "off", "autocapitalize": "off"}
GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "Compares with the answer": {
        "exact_match": ("Exact match", "equal"),
        "string_check": ("String check", "equal"),
        "numeric": ("Number", "calculator"),
        "maths": ("Maths", "sigma"),
        "label_match": ("Label match", "list-checks"),
        "text_similarity": ("Text similarity", "gauge"),
    },
    "Looks at the form": {
        "regex": ("Pattern", "regex"),
        "format": ("Format", "file-text"),
        "json_schema": ("JSON schema", "braces"),
        "json_path": ("JSON path", "braces"),
        "brevity": ("Brevity", "ruler"),
        "length_window": ("Length window", "ruler"),
    },
    "Runs code, or asks a model": {
        "python": ("Python", "file-text"),
        "code_tests": ("Code tests", "flask-conical"),
        "judge": ("Model as judge", "scale"),
    },
    "Comes with a task": {
        "reasoning_gym": ("Reasoning gym", "sparkles"),
        "environment": ("Environment's reward", "box"),
    },
    "Puts graders together": {
        "mix": ("Mix", "layers"),
    },
}
"""Group -> grader -> title and icon, in the order of the page; others are called by their type."""
OTHERS = "Others"
LISTED = {name: (group, *words) for group, graders in GROUPS.items() for name, words in graders.items()}
ORDER = list(LISTED)
LABELS = {
    "pattern": "Regular expression",
    "ignore_case": "Ignore upper and lower case",
    "strip": "Ignore white space around both",
    "full": "The whole completion must match",
    "group_equals_answer": "The group must equal the answer",
    "json_schema": "JSON schema",
    "code": "Python code",
    "batch": "One call for a whole group",
    "clip": "Clip the result to 0 to 1",
    "target": "Full score up to",
    "limit": "No score from",
}
PLACEHOLDERS = {
    "pattern": r"<answer>(\d+)</answer>",
    "json_schema": '{"type": "object", "required": ["answer"]}',
}
EDITORS = {"code": "python", "tests": "python", "prefix": "python"}
"""Option -> language of its editor; options that are JSON have the JSON editor."""
SECONDARY = {"input", "reference"}
"""Options that are nearly always left as they are: they are folded away."""


class LinesField(forms.CharField):
    """A list of texts, one a line."""

    widget = forms.Textarea

    def prepare_value(self, value: Any) -> Any:
        return "\n".join(value) if isinstance(value, list) else value

    def clean(self, value: Any) -> Any:
        return [line.strip() for line in super().clean(value).splitlines() if line.strip()]


class ReadableJson(forms.JSONField):
    """JSON over several lines."""

    def prepare_value(self, value: Any) -> Any:
        if isinstance(value, str | forms.fields.InvalidJSONInput):
            return value
        return json.dumps(value, indent=2, ensure_ascii=False)


def plain(docstring: str) -> str:
    """A docstring as a sentence for people: no markup, no line breaks, no names of modules, no words of Python."""
    text = re.sub(r"\s+", " ", docstring.replace("``", "")).strip()
    for python, word in (("None", "Empty"), ("False", "Off"), ("True", "On")):
        text = re.sub(rf"\b{python}:", f"{word}:", text).replace(f"; {word}:", f"; {word.lower()}:")
    return re.sub(r"[;,]? see engine\.[\w.]*\w", "", text)


def _members(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models of a union, however nested."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) is Annotated:
        yield from _members(get_args(annotation)[0])
    elif get_origin(annotation) in {Union, UnionType}:
        for each in get_args(annotation):
            yield from _members(each)


def _form_field(name: str, info: FieldInfo) -> forms.Field:
    label = LABELS.get(name, name.replace("_", " ").capitalize())
    common: dict[str, Any] = {"required": False, "label": label, "help_text": plain(info.description or "")}
    if name in LABELS and common["help_text"].rstrip(".") == label:
        common["help_text"] = ""
    if not info.is_required():
        common["initial"] = info.get_default(call_default_factory=True)
    annotation = _bare(info.annotation)
    if get_origin(annotation) is Literal:
        choices = [(value, str(value)) for value in get_args(annotation)]
        return forms.ChoiceField(choices=choices, **common)
    if annotation is bool:
        return forms.BooleanField(**common)
    if annotation is int:
        return forms.IntegerField(**common)
    if annotation is float:
        return forms.FloatField(widget=forms.NumberInput(attrs={"step": "any"}), **common)
    if annotation is str:
        return forms.CharField(strip=False, widget=_text_widget(name, info), **common)
    if get_origin(annotation) is list and _bare(get_args(annotation)[0]) is str:
        common["help_text"] = f"One a line. {common['help_text']}".strip()
        return LinesField(widget=forms.Textarea(attrs={"rows": 3}), **common)
    attrs = {**MONO, "rows": 6, "data-editor": "json", "placeholder": PLACEHOLDERS.get(name, "")}
    return ReadableJson(widget=forms.Textarea(attrs=attrs), **common)


def _bare(annotation: Any) -> Any:
    """The type without what may be said about it, and without None."""
    if get_origin(annotation) is Annotated:
        return _bare(get_args(annotation)[0])
    if get_origin(annotation) in {Union, UnionType}:
        return _bare(next(each for each in get_args(annotation) if each is not type(None)))
    return annotation


def _text_widget(name: str, info: FieldInfo) -> forms.Widget:
    longest = next((m.max_length for m in info.metadata if hasattr(m, "max_length")), 0)
    attrs = {**MONO, "placeholder": PLACEHOLDERS.get(name, "")}
    if name in EDITORS:
        return forms.Textarea(attrs={**attrs, "rows": 14, "data-editor": EDITORS[name]})
    if longest > LONG_TEXT and name not in SECONDARY and name != "pattern":
        return forms.Textarea(attrs={**attrs, "rows": 4})
    return forms.TextInput(attrs=attrs)


class OptionsForm(forms.Form):
    """The options of one kind of grader. What an option may be, the contract says when it is saved."""

    def to_options(self) -> dict[str, Any]:
        """Options as JSON; an empty one is left out, so that its default counts or the service can name it."""
        given = {name: self.cleaned_data.get(name) for name in self.fields}
        return {name: value for name, value in given.items() if value is not None and value not in ("", [], {})}

    @property
    def primary(self) -> list[forms.BoundField]:
        return [self[name] for name in self.fields if name not in SECONDARY]

    @property
    def secondary(self) -> list[forms.BoundField]:
        return [self[name] for name in self.fields if name in SECONDARY]


ModelClass = type[BaseModel]
OptionsClass = type[OptionsForm]


@dataclass(frozen=True)
class Kind:
    """One kind of grader, as the page explains it."""

    type: str
    group: str
    title: str
    text: str
    icon: str
    model: ModelClass
    options_form: OptionsClass


def _kind(model: type[BaseModel]) -> Kind:
    (grader_type,) = get_args(model.model_fields["type"].annotation)
    unlisted = (OTHERS, grader_type.replace("_", " ").capitalize(), "sliders-horizontal")
    group, title, icon = LISTED.get(grader_type, unlisted)
    own = {"type", "parts"} if grader_type == MIX_TYPE else {"type"}  # the parts are forms of their own
    fields = {name: _form_field(name, info) for name, info in model.model_fields.items() if name not in own}
    ordered = dict(sorted(fields.items(), key=lambda item: not model.model_fields[item[0]].is_required()))
    options_form = cast(type[OptionsForm], type(f"{model.__name__}Options", (OptionsForm,), ordered))
    first = plain((model.__doc__ or "").split("\n\n")[0])
    return Kind(grader_type, group, title, first, icon, model, options_form)


def _kinds(annotation: Any) -> dict[str, Kind]:
    """In the order of ``GROUPS``, those it does not list before the mix."""
    kinds = map(_kind, _members(annotation))
    places = {name: place for place, name in enumerate(ORDER)}
    return {kind.type: kind for kind in sorted(kinds, key=lambda kind: places.get(kind.type, places[MIX_TYPE] - 0.5))}


def grouped(kinds: Iterable[Kind]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Choices of a form field, in groups."""
    return [
        (group, [(kind.type, kind.title) for kind in members])
        for group, members in groupby(kinds, key=lambda kind: kind.group)
    ]


KINDS = _kinds(Grader)
"""Every grader of the contract, by type."""
SIMPLE = _kinds(MixPart.model_fields["grader"].annotation)
"""Those that may be a part of a mix."""
