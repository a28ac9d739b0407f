"""What a grader reads: the texts its templates name, taken from one sample."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.spec.templates import render
from engine.types import Sample

SHOWN_CHARACTERS = 80


class GraderError(Exception):
    """The grading cannot be done, through no fault of the completion. The message is for the reward's author."""


class Source:
    """One sample as its graders see it."""

    def __init__(self, sample: Sample) -> None:
        self.sample = sample
        self._values: Mapping[str, Any] | None = None

    def text(self, template: str) -> str:
        """The template with its references filled in. Raises MissingValue, which names what is not there."""
        if self._values is None:
            self._values = template_values(self.sample)
        return render(template, self._values)


def template_values(sample: Sample) -> dict[str, Any]:
    """What templates may refer to, as plain data; see ``engine.spec.templates``."""
    row = sample.row
    turns = [{"role": turn.role, "content": turn.content} for turn in sample.turns]
    return {
        "row": {**row.model_dump(), "prompt": row.messages[-1].content},
        "sample": {
            "completion": sample.completion,
            "turns": turns or [{"role": "assistant", "content": sample.completion}],
        },
    }


def shorten(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "..."


def shown(text: str) -> str:
    return repr(shorten(text))
