"""Tool calls in a model's reply: read as the model wrote them, whatever base model it is.

Three forms are known: ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>`` (Hermes, Qwen), a fenced block of
such JSON, and a reply that is such JSON and nothing else (Llama; it says ``parameters``). A reply with any of the first
form is read for that form alone. JSON that is no call, such as an answer in a fenced block, is no call.
"""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import dataclass
from typing import Any

TAG = re.compile(r"<tool_call>(.*?)(?:</tool_call>|(?=<tool_call>)|\Z)", re.DOTALL)
FENCE = re.compile(r"```[a-zA-Z_]*[ \t]*\n(.*?)\n?[ \t]*```", re.DOTALL)
ARGUMENTS = ("arguments", "parameters")
FORM = '<tool_call>{"name": "...", "arguments": {...}}</tool_call>'


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class MalformedCall:
    """What was meant as a call and is none."""

    problem: str
    """For the model: what is wrong and how to write it."""


def parse_calls(text: str) -> list[ToolCall | MalformedCall]:
    """The calls in a reply, in order; none: the reply is an answer."""
    if tagged := TAG.findall(text):
        return [_parse(content) for content in tagged]
    blocks = FENCE.findall(text) or [text]
    return [_parse(block) for block in blocks if _looks_like_call(block)]


def _looks_like_call(block: str) -> bool:
    """An object with a name and arguments; judged by its text, so that a misplaced comma does not make it an answer."""
    block = block.strip()
    return block[:1] == "{" and '"name"' in block and any(f'"{key}"' in block for key in ARGUMENTS)


def _parse(content: str) -> ToolCall | MalformedCall:
    try:
        call = json.loads(content)
    except (ValueError, RecursionError) as error:
        return MalformedCall(f"The tool call is not valid JSON ({_shorten(str(error))}). Write {FORM}")
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return MalformedCall(f"The tool call has no name. Write {FORM}")
    arguments: Any = next((call[key] for key in ARGUMENTS if key in call), {})
    if isinstance(arguments, str):  # as OpenAI's API has them
        with contextlib.suppress(ValueError, RecursionError):
            arguments = json.loads(arguments)
    if not isinstance(arguments, dict):
        return MalformedCall(f"The arguments of the call of {_shorten(call['name'])} are no object. Write {FORM}")
    return ToolCall(call["name"], arguments)


def _shorten(text: str) -> str:
    return text if len(text) <= 80 else text[:80] + "..."
