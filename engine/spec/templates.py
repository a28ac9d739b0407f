"""References into the row and the sample, in one syntax wherever a grader takes a text: ``{{ row.answer }}``.

A template is text in which ``{{ path }}`` stands for a value. A path is names joined by dots, with ``[0]`` for a place
in a list (``[-1]``: the last) and ``["any name"]`` for a name with other characters than letters, digits, ``_``
and ``-`` (braces excepted):

============================  ==========================================================================
``row.answer``                the row's reference answer
``row.prompt``                the row's last user message
``row.messages[0].content``   a message of the row (``role`` likewise)
``row.metadata.x.y``          anything in the row's metadata
``row.split``                 ``train`` or ``held_out``
``sample.completion``         the model's last reply
``sample.turns[0].content``   a message after the row's (``role`` likewise): replies and the environment's answers
============================  ==========================================================================

Nothing is computed: a path is looked up, no more. Text is put in as it is, everything else as JSON. What has no
``{{`` is taken literally.

Invariant: a template that was accepted is well-formed and begins every path at a known place; a value that is missing
all the same raises ``MissingValue``, which names it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any

from pydantic import AfterValidator, Field

MAX_CHARACTERS = 20_000

ANSWER = "{{ row.answer }}"
COMPLETION = "{{ sample.completion }}"

_REFERENCE = re.compile(r"\{\{([^{}]*)\}\}")
_STEP = re.compile(r"""\.([A-Za-z_][A-Za-z0-9_-]*)|\[(-?[0-9]{1,6})\]|\[("[^"\n]*"|'[^'\n]*')\]""")
_MESSAGE = {"role", "content"}
_FIELDS = {"row": ["answer", "prompt", "messages", "metadata", "split"], "sample": ["completion", "turns"]}

Path = tuple[str | int, ...]


class MissingValue(LookupError):
    """A template names a value that this row or sample does not have. The message is for the reward's author."""


def check_template(text: str) -> str:
    """The text itself. Raises ValueError where a reference is malformed or begins at no known place."""
    _parse(text)
    return text


def render(template: str, values: Mapping[str, Any]) -> str:
    """The template with its references filled in.

    Args:
        values: ``{"row": {...}, "sample": {...}}``, plain data as in the module's table.

    Raises:
        MissingValue: a value is not there, or is null.
    """
    return "".join(part if isinstance(part, str) else _text(part, values) for part in _parse(template))


@lru_cache(maxsize=1024)
def _parse(template: str) -> tuple[str | Path, ...]:
    """Literal texts and paths, in order."""
    parts: list[str | Path] = []
    for index, piece in enumerate(_REFERENCE.split(template)):
        if index % 2:
            parts.append(_path(piece.strip()))
        elif "{{" in piece:
            raise ValueError("a reference is opened with {{ and not closed with }}, or has a brace in it")
        else:
            parts.append(piece)
    return tuple(parts)


def _path(text: str) -> Path:
    steps: list[str | int] = []
    place = 0
    dotted = f".{text}"
    while match := _STEP.match(dotted, place):
        name, index, quoted = match.groups()
        steps.append(name if name else int(index) if index else quoted[1:-1])
        place = match.end()
    if place != len(dotted) or not steps:
        raise ValueError(f"{{{{ {text[:80]} }}}} is not a reference; write for example {ANSWER}")
    _check(text, steps)
    return tuple(steps)


def _check(text: str, steps: list[str | int]) -> None:
    root, *rest = steps
    if root not in _FIELDS:
        raise ValueError(f"{{{{ {text} }}}} begins with {root!r}; begin with 'row' or 'sample'")
    known = _FIELDS[str(root)]
    if not rest or rest[0] not in known:
        what = f"{rest[0]!r} is not in {root}" if rest else f"{root} alone is no value"
        raise ValueError(f"{{{{ {text} }}}}: {what}; it has {', '.join(f'{root}.{name}' for name in known)}")
    field, *inside = rest
    if field == "metadata" or not inside:
        return
    if field not in {"messages", "turns"}:
        raise ValueError(f"{{{{ {text} }}}}: {root}.{field} is text and has nothing inside")
    if not isinstance(inside[0], int) or len(inside) > 2 or (len(inside) == 2 and inside[1] not in _MESSAGE):
        raise ValueError(f"{{{{ {text} }}}}: write {root}.{field}[0].content or {root}.{field}[0].role")


def _text(path: Path, values: Mapping[str, Any]) -> str:
    value: Any = values
    for depth, step in enumerate(path):
        try:
            if isinstance(step, str) and not isinstance(value, Mapping):
                raise KeyError(step)
            value = value[step]
        except (KeyError, IndexError, TypeError):
            raise MissingValue(f"{_name(path[: depth + 1])} is not there") from None
    if value is None:
        raise MissingValue(f"{_name(path)} is null")
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _name(path: Path) -> str:
    first, *rest = path
    return str(first) + "".join(f".{step}" if isinstance(step, str) else f"[{step}]" for step in rest)


Template = Annotated[str, Field(max_length=MAX_CHARACTERS), AfterValidator(check_template)]
"""A text with references; see the module's docstring."""
