"""What the new-job form would start, to be read once more before it does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from portal.jobs.form_fields import NAME_SEPARATOR
from portal.jobs.form_layout import ALGORITHMS, AMOUNT, ENVIRONMENT_TYPES, EPISODE, ROWS, TEXTS
from portal.jobs.forms import JobForm

ALWAYS = {*EPISODE, *AMOUNT, "environment__dataset", "environment__url", "environment__tools"}
"""Settings shown as they are; others only where they are not as they come."""


@dataclass(frozen=True)
class Line:
    label: str
    value: Any
    changed: bool = False
    """Not the setting's default."""


def review_settings(form: JobForm) -> list[Line]:
    """What was chosen, and every setting that matters or was changed."""
    given = form.cleaned_data
    lines = [
        Line("Name", given.get("name") or "not given yet"),
        Line("Base model", given.get("base_model") or "not chosen yet"),
        Line("Prompts from", _rows(form)),
        Line("Reward", given.get("reward_version") or "not chosen yet"),
        Line("Environment", _environment(form)),
        Line("Algorithm", ALGORITHMS[given.get("training__algorithm", "grpo")][0]),
    ]
    if form.source is not None:
        lines.insert(2, Line("Continues from", f"{form.source.job.name} v{form.source.version}"))
    settings = form.to_settings()
    for name, (label, _) in TEXTS.items():
        section, setting = name.split(NAME_SEPARATOR)
        if setting not in settings.get(section, {}):
            continue
        value = settings[section][setting]
        changed = value != form.base_fields[name].initial
        if name in ALWAYS or (changed and value not in ("", {}, [])):
            lines.append(Line(label, ", ".join(value) if isinstance(value, list) else value, changed))
    return lines


def _rows(form: JobForm) -> Any:
    if form.rows_from == "generated":
        return ROWS["generated"][1]
    return form.cleaned_data.get("dataset_version") or "not chosen yet"


def _environment(form: JobForm) -> str:
    kind = form.environment_type
    return "reasoning-gym, one turn" if kind == "reasoning_gym" else ENVIRONMENT_TYPES[kind][1]
