"""Which columns of a file are the prompt, the answer and the rest.

Invariant: a mapping only renames and picks; what a row may hold is ``portal.datasets.parsing``'s to say, and its faults
are told under the column's own name.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from portal.datasets.parsing import RowInvalid, excerpt, normalise
from portal.errors import FieldError, InvalidInput, field_errors

NAMES = {
    "messages": ("messages", "conversations", "conversation", "chat", "dialogue"),
    "prompt": ("prompt", "question", "problem", "instruction", "query", "input", "task", "text"),
    "answer": (
        "answer", "final_answer", "ground_truth", "reward_model.ground_truth", "solution", "target", "label",
        "expected", "reference", "output", "response", "completion", "canonical_solution",
    ),
    "split": ("split",),
}  # fmt: skip
"""Column names seen in public data sets, the surest first."""
ONE_PROMPT_FIELD = "prompt"
"""Where the rule that there is a prompt is shown."""
MARKERS = ("####",)
"""What stands before the final answer in some data sets (gsm8k)."""


class FieldMapping(BaseModel):
    """Columns by role; a dot leads into an object (``reward_model.ground_truth``). Empty: there is none."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    prompt: str = Field(default="", max_length=200)
    """Text of the user's message."""
    messages: str = Field(default="", max_length=200)
    """A list of {role, content}, or such a list as JSON text. With both, each row has one of them."""
    answer: str = Field(default="", max_length=200)
    """Text or a number; a row without it has no answer."""
    answer_after: str = Field(default="", max_length=50)
    """Take only what follows the last of these, such as ``####``."""
    split: str = Field(default="", max_length=200)
    """Values ``train`` and ``held_out``; ``test``, ``eval``, ``validation`` and ``dev`` mean the latter."""
    metadata: list[str] | None = Field(default=None, max_length=1000)
    """Columns kept as metadata; null: all that are not used otherwise."""

    @model_validator(mode="after")
    def _one_prompt(self) -> FieldMapping:
        if not self.prompt and not self.messages:
            raise ValueError("Choose the column of the prompt, or that of the messages.")
        return self


HELD_OUT_NAMES = {"held_out", "held-out", "heldout", "test", "eval", "validation", "valid", "val", "dev"}


def read_mapping(data: Any) -> FieldMapping:
    """A mapping from JSON, or from its text. Raises InvalidInput."""
    try:
        if isinstance(data, str):
            data = json.loads(data)
        return FieldMapping.model_validate(data)
    except ValidationError as error:
        fields = [
            FieldError(f"mapping.{item.field or ONE_PROMPT_FIELD}", item.message) for item in field_errors(error, data)
        ]
        raise InvalidInput("The mapping is wrong.", fields=fields) from None
    except ValueError:
        raise InvalidInput("The mapping is wrong.", fields=[FieldError("mapping", "is not valid JSON")]) from None


def map_row(data: dict[str, Any], mapping: FieldMapping | None) -> dict[str, Any]:
    """A record as JSON of ``DatasetRow``; without a mapping its columns have the names already. Raises RowInvalid."""
    if mapping is None:
        return normalise(_without_texts(data))
    used = {mapping.prompt, mapping.messages, mapping.answer, mapping.split}
    roles = {"messages": mapping.messages, "prompt": mapping.prompt, "answer": mapping.answer}
    row = {role: value for role, column in roles.items() if column and (value := value_at(data, column)) is not _NONE}
    if not {"messages", "prompt"} & row.keys():
        raise RowInvalid((mapping.prompt or mapping.messages, "is missing from this row", None))
    if mapping.answer_after and mapping.answer:
        row["answer"] = _after(mapping.answer, row.get("answer"), mapping.answer_after)
    if mapping.split and (split := value_at(data, mapping.split)) not in (_NONE, None, ""):
        row["split"] = "held_out" if isinstance(split, str) and split.strip().lower() in HELD_OUT_NAMES else split
    row["metadata"] = _metadata(data, mapping, used)
    try:
        return normalise(_without_texts(row))
    except RowInvalid as invalid:
        raise RowInvalid(*((_own_name(name, mapping), said, value) for name, said, value in invalid.faults)) from None


_NONE = object()


def value_at(data: dict[str, Any], column: str) -> Any:
    """The value of a column, ``_NONE`` where the row has none."""
    if column in data:
        return data[column]
    head, _, rest = column.partition(".")
    inner = data.get(head)
    return inner.get(rest, _NONE) if rest and isinstance(inner, dict) else _NONE


def _after(column: str, answer: Any, marker: str) -> Any:
    if not isinstance(answer, str):
        raise RowInvalid((column, f"must be text with {marker!r} in it", answer))
    _, found, rest = answer.rpartition(marker)
    if not found:
        raise RowInvalid((column, f"has no {marker!r}", answer))
    return rest.strip()


def _metadata(data: dict[str, Any], mapping: FieldMapping, used: set[str]) -> dict[str, Any]:
    if mapping.metadata is not None:
        return {name: value for name in mapping.metadata if (value := value_at(data, name)) is not _NONE}
    rest = {name: value for name, value in data.items() if name not in used}
    inner = _object(rest.get("metadata"))
    if isinstance(inner, dict):
        del rest["metadata"]
        return {**inner, **rest}
    return {name: value for name, value in rest.items() if name != "metadata" or value not in (None, "")}


def _without_texts(row: dict[str, Any]) -> dict[str, Any]:
    """Messages and metadata that came as JSON text (CSV has nothing else) as what they say."""
    result = dict(row)
    if isinstance(result.get("messages"), str):
        result["messages"] = _object(result["messages"])
    if isinstance(result.get("metadata"), str):
        result["metadata"] = _object(result["metadata"]) if result["metadata"].strip() else None
    if result.get("split") in ("", None):
        result.pop("split", None)
    return result


def _object(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _own_name(name: str, mapping: FieldMapping) -> str:
    role, dot, rest = name.partition(".")
    if role == "messages" and not mapping.messages:
        return mapping.prompt
    column = getattr(mapping, role, None) if role in {"prompt", "messages", "answer", "split"} else None
    return f"{column}{dot}{rest}" if column else name


# --- guessing --------------------------------------------------------------------------------------------------------


@dataclass
class Column:
    """A column as the first rows show it."""

    name: str
    example: str
    values: list[Any] = field(default_factory=list)

    @property
    def is_chat(self) -> bool:
        found = [parsed for value in self.values if (parsed := _object(value)) not in (None, "")]
        return bool(found) and all(
            isinstance(value, list) and value and isinstance(value[0], dict) and {"role", "content"} <= value[0].keys()
            for value in found
        )


def list_columns(rows: list[dict[str, Any]]) -> list[Column]:
    """The columns of these rows, those inside objects after the objects themselves."""
    columns: dict[str, Column] = {}
    for row in rows:
        flat = dict(row)
        for name, value in row.items():
            if isinstance(value, dict) and name != "metadata":
                flat.update({f"{name}.{key}": item for key, item in value.items() if "." not in key})
        for name, value in flat.items():
            column = columns.setdefault(name, Column(name, ""))
            column.values.append(value)
            column.example = column.example or excerpt(value)
    return list(columns.values())


def guess_mapping(columns: list[Column]) -> FieldMapping | None:
    """The likely mapping; None where no column looks like a prompt."""
    by_name = {column.name.lower(): column for column in columns}

    def find(role: str) -> Column | None:
        return next((by_name[name] for name in NAMES[role] if name in by_name), None)

    chat = next((column for column in columns if column.is_chat), None)
    prompt = find("prompt") if chat is None or chat.name == "messages" else None
    if chat and prompt and prompt.name != "prompt":  # beside a chat, any other text is something else
        prompt = None
    if chat is None and prompt is None:
        return None
    answer, split = find("answer"), find("split")
    texts = [value for value in answer.values if isinstance(value, str)] if answer else []
    marker = next((mark for mark in MARKERS if texts and all(mark in text for text in texts)), "")
    return FieldMapping(
        prompt=prompt.name if prompt else "",
        messages=chat.name if chat else "",
        answer=answer.name if answer else "",
        answer_after=marker,
        split=split.name if split and _are_splits(split) else "",
    )


def _are_splits(column: Column) -> bool:
    known = HELD_OUT_NAMES | {"train"}
    return all(isinstance(value, str) and value.strip().lower() in known for value in column.values if value)
