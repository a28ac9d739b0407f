"""Form fields made of ``engine.spec``: type, default and choices are said there; what a person reads is said here."""

from __future__ import annotations

import types
from typing import Any, Literal, Union, get_args, get_origin

from django import forms
from pydantic import BaseModel as PydanticModel
from pydantic_core import PydanticUndefined

from engine.spec import (
    EvaluationSettings,
    Limits,
    LoraSettings,
    OpenEnv,
    ReasoningGym,
    Remote,
    RewardErrorPolicy,
    SamplingSettings,
    SingleTurn,
    Tools,
    TrainingSettings,
)
from portal.errors import plain_number

NAME_SEPARATOR = "__"
"""``training.steps`` of the spec is the field ``training__steps`` of the form."""

SECTIONS: dict[str, type[PydanticModel]] = {
    "sampling": SamplingSettings,
    "training": TrainingSettings,
    "lora": LoraSettings,
    "evaluation": EvaluationSettings,
    "limits": Limits,
    "reward_errors": RewardErrorPolicy,
}
ENVIRONMENTS: dict[str, type[PydanticModel]] = {
    "single_turn": SingleTurn,
    "tools": Tools,
    "reasoning_gym": ReasoningGym,
    "remote": Remote,
    "openenv": OpenEnv,
}


def setting_field(name: str, label: str, help_text: str, *, rows: int = 0, placeholder: str = "") -> forms.Field:
    """The field for the setting ``name`` (``section__setting``).

    It only turns what was typed into the setting's type; limits are the spec's to check. A setting that may be None
    may be left empty, and so may texts and objects.
    """
    info = _model(name).model_fields[name.split(NAME_SEPARATOR)[1]]
    annotation = info.annotation
    if info.default is not PydanticUndefined:
        default = plain_number(info.default)
    else:
        default = info.get_default(call_default_factory=True) if info.default_factory else None
    shared: dict[str, Any] = {"label": label, "help_text": help_text, "initial": default}
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return forms.ChoiceField(choices=[(value, _words(value)) for value in arguments], **shared)
    if origin is list:
        choices = [(value, _words(value)) for value in get_args(arguments[0])]
        return forms.MultipleChoiceField(choices=choices, required=False, widget=forms.CheckboxSelectMultiple, **shared)
    if annotation is bool:
        return forms.BooleanField(required=False, **shared)
    if origin is dict:
        return forms.JSONField(
            required=False,
            widget=forms.Textarea(attrs={"rows": rows or 3, "class": "mono", "spellcheck": "false"}),
            error_messages={"invalid": f"{label} must be JSON, such as {{}}."},
            **shared,
        )
    if annotation is str:
        attributes = {"placeholder": placeholder, "autocomplete": "off"}
        widget = forms.Textarea(attrs={**attributes, "rows": rows}) if rows else forms.TextInput(attrs=attributes)
        return forms.CharField(required=False, widget=widget, **shared)
    optional = origin in (Union, types.UnionType)
    whole = int in (arguments or (annotation,))
    number = forms.IntegerField if whole else forms.FloatField
    return number(
        required=not optional,
        widget=forms.NumberInput(attrs={"step": 1 if whole else "any", "placeholder": placeholder}),
        error_messages={"required": f"{label} is needed.", "invalid": f"{label} must be a number."},
        **shared,
    )


def _model(name: str) -> type[PydanticModel]:
    section, setting = name.split(NAME_SEPARATOR)
    if section != "environment":
        return SECTIONS[section]
    return next(model for model in ENVIRONMENTS.values() if setting in model.model_fields)


def _words(value: str) -> str:
    """``q_proj`` stays; ``linear`` -> ``Linear``."""
    return value if "_" in value or len(value) < 4 else value.capitalize()
