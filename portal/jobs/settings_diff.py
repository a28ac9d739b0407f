"""A job's settings beside those of the job it continues from, or the defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from engine.spec import (
    Environment,
    EvaluationSettings,
    Limits,
    LoraSettings,
    RewardErrorPolicy,
    SamplingSettings,
    TrainingSettings,
)
from portal.jobs.models import Job

SECTIONS: dict[str, Any] = {
    "training": TrainingSettings,
    "sampling": SamplingSettings,
    "lora": LoraSettings,
    "evaluation": EvaluationSettings,
    "limits": Limits,
    "reward_errors": RewardErrorPolicy,
    "environment": None,
}
MISSING = "–"


@dataclass(frozen=True)
class Setting:
    """One setting of a job and what it is compared with."""

    name: str
    """As in the spec, e.g. ``training.learning_rate``."""
    value: str
    other: str

    @property
    def label(self) -> str:
        return self.name.replace("_", " ").replace(".", " · ")

    @property
    def differs(self) -> bool:
        return self.value != self.other


def flatten_settings(job: Job) -> dict[str, str]:
    """All that makes a job what it is, as text by name; two jobs with the same train alike."""
    settings = {
        "base model": job.base_model_id,
        "dataset": job.rows_from,
        "reward": str(job.reward_version) if job.reward_version else MISSING,
        "starts from": f"{job.start_from.job.name} v{job.start_from.version}" if job.start_from else "the base model",
        "seed": str(job.spec.get("seed", 0)),
    }
    for section in SECTIONS:
        settings |= _flatten(section, job.spec.get(section, {}))
    settings["training.steps"] = str(job.steps)  # as extended since
    return settings


def _flatten(prefix: str, values: dict[str, Any]) -> dict[str, str]:
    return {f"{prefix}.{name}": _text(value) for name, value in values.items()}


def _text(value: Any) -> str:
    match value:
        case None:
            return "none"
        case "" | [] | {}:
            return MISSING
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:g}"
        case list():
            return ", ".join(_text(item) for item in value)
    return str(value)


def default_settings(job: Job) -> dict[str, str]:
    """What ``flatten_settings`` would give where nothing had been chosen; what has no default is as in the job."""
    settings = flatten_settings(job)
    defaults = {"starts from": "the base model", "seed": "0"}
    for section, model in SECTIONS.items():
        values = _default_environment(job.spec) if model is None else model().model_dump(mode="json")
        defaults |= _flatten(section, values)
    return {name: defaults.get(name, value) for name, value in settings.items()}


def _default_environment(spec: dict[str, Any]) -> dict[str, Any]:
    """The defaults of the environment's kind; {} where it has settings without default."""
    try:
        kind = {"type": spec.get("environment", {}).get("type", "single_turn")}
        return dict(TypeAdapter[Any](Environment).validate_python(kind).model_dump(mode="json"))
    except ValidationError:
        return {}


def compare_settings(job: Job) -> tuple[str, list[Setting]]:
    """What the job is compared with, in words, and all of its settings."""
    parent = job.start_from.job if job.start_from else None
    others = flatten_settings(parent) if parent else default_settings(job)
    settings = flatten_settings(job)
    found = [Setting(name, value, others.get(name, MISSING)) for name, value in settings.items()]
    if parent:  # that it starts from its parent says nothing
        found = [setting for setting in found if setting.name != "starts from"]
    return (parent.name if parent else "the defaults"), found
