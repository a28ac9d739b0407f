"""Rewards to start from. Each is a whole ``RewardSpec`` that works as it is; the page opens it for changing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from portal.rewards.graders import KINDS

PYTHON = '''import re


def reward(prompt, completion, row, turns):
    """Full marks for the right number, a little for showing a number at all."""
    numbers = re.findall(r"-?\\d+(?:\\.\\d+)?", completion)
    if not numbers:
        return {"total": 0.0, "reason": "no number in the completion"}
    right = float(numbers[-1]) == float(row["answer"])
    return {"total": 1.0 if right else 0.1, "right": float(right), "reason": f"read {numbers[-1]}"}
'''


@dataclass(frozen=True)
class Example:
    """One reward to start from."""

    slug: str
    title: str
    text: str
    spec: dict[str, Any]


_ALL = [
    Example("exact", "Exact match", "Short answers, the same text", {"grader": {"type": "exact_match"}}),
    Example("number", "Numeric answer", "Arithmetic, word problems", {"grader": {"type": "numeric"}}),
    Example("maths", "Maths", "Formulas in any form", {"grader": {"type": "maths"}}),
    Example(
        "tag",
        "Answer in a tag",
        "A pattern whose group is the answer",
        {"grader": {"type": "regex", "pattern": r"<answer>\s*(.*?)\s*</answer>", "group_equals_answer": True}},
    ),
    Example(
        "json",
        "JSON output",
        "Structured answers",
        {
            "grader": {
                "type": "json_schema",
                "json_schema": {
                    "type": "object",
                    "properties": {"answer": {"type": "string"}},
                    "required": ["answer"],
                    "additionalProperties": False,
                },
            }
        },
    ),
    Example(
        "mix",
        "Right and short",
        "A weighted mix",
        {
            "grader": {
                "type": "mix",
                "parts": [
                    {"name": "right", "weight": 1.0, "grader": {"type": "numeric"}},
                    {"name": "short", "weight": 0.2, "grader": {"type": "brevity", "target": 100, "limit": 400}},
                ],
            }
        },
    ),
    Example(
        "formula",
        "Mix by formula",
        "Shortness counts only where it is right",
        {
            "grader": {
                "type": "mix",
                "parts": [
                    {"name": "right", "weight": 1.0, "grader": {"type": "numeric"}},
                    {"name": "short", "weight": 1.0, "grader": {"type": "brevity", "target": 100, "limit": 400}},
                ],
                "formula": "right * (0.8 + 0.2 * short)",
            }
        },
    ),
    Example("python", "Python function", "Any rule you can write", {"grader": {"type": "python", "code": PYTHON}}),
    Example(
        "code",
        "Code tests",
        "Completions that are programs",
        {
            "grader": {
                "type": "code_tests",
                "tests": "{{ row.metadata.test }}",
                "entry_point": "{{ row.metadata.entry_point }}",
                "prefix": "{{ row.metadata.prompt }}",
                "score": "fraction",
            },
            "timeout_seconds": 10.0,
        },
    ),
    Example(
        "judge",
        "Model as judge",
        "The base model grades, costs tokens",
        {"grader": {"type": "judge", "labels": {"yes": 1.0, "no": 0.0}}},
    ),
]


def _offered(example: Example) -> bool:
    """Whether this installation's graders can express it."""
    grader = example.spec["grader"]
    kind = KINDS.get(grader["type"])
    return kind is not None and set(grader) <= set(kind.model.model_fields)


EXAMPLES = {example.slug: example for example in _ALL if _offered(example)}
