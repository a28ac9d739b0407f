"""What a worker is told: its set-up and its calls."""

from __future__ import annotations

from typing import Any

from engine.rewards.graders.source import template_values
from engine.spec import CodeTests, Python
from engine.spec.templates import render
from engine.types import Sample


def setup_of(grader: Python | CodeTests) -> dict[str, Any]:
    """Fields of a worker's first line that say what it runs; see ``inside.worker``."""
    if isinstance(grader, CodeTests):
        return {}
    return {"code": grader.code, "function": grader.function, "batch": grader.batch}


def call_of(grader: Python | CodeTests, sample: Sample) -> dict[str, Any]:
    """One sample as the code gets it. Raises MissingValue where a template names what the row does not have."""
    values = template_values(sample)
    if isinstance(grader, CodeTests):
        return {
            "completion": sample.completion,
            "tests": render(grader.tests, values),
            "entry_point": render(grader.entry_point, values) if grader.entry_point else "",
            "prefix": render(grader.prefix, values),
            "fraction": grader.score == "fraction",
        }
    return {
        "prompt": values["row"].pop("prompt"),
        "completion": sample.completion,
        "row": values["row"],
        "turns": values["sample"]["turns"],
    }
