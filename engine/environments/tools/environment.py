"""The environment of tools: each call in a reply is answered; the first reply without a call ends the episode."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jsonschema

from engine.data import DatasetError
from engine.environments.files import Document, TenantFiles, row_documents
from engine.environments.protocol import EpisodeError, Observation, Role, TurnMessage
from engine.environments.tools.calculator import Calculator
from engine.environments.tools.calls import FORM, MalformedCall, ToolCall, parse_calls
from engine.environments.tools.protocol import Tool, ToolError
from engine.environments.tools.python import Python, RunsCode
from engine.environments.tools.search import Index, Search
from engine.spec import DatasetRow, Tools

MAX_CALLS = 8
"""Calls of one reply that are answered."""

TOOLS: dict[str, type[Calculator] | type[Search] | type[Python]] = {
    "calculator": Calculator,
    "search": Search,
    "python": Python,
}


def instructions(settings: Tools) -> str:
    """What the system message says of the tools, in the words Hermes and Qwen models were tuned with.

    The same for every base model, for few templates describe tools themselves and each in its own way.
    """
    described = [
        json.dumps(
            {
                "type": "function",
                "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
            }
        )
        for tool in (TOOLS[name] for name in settings.tools)
    ]
    return "\n".join(
        [
            "# Tools",
            "",
            "You may call one or more functions to assist with the user query.",
            "",
            "You are provided with function signatures within <tools></tools> XML tags:",
            "<tools>",
            *described,
            "</tools>",
            "",
            "For each function call, return a json object with function name and arguments within "
            "<tool_call></tool_call> XML tags:",
            FORM,
        ]
    )


class ToolsEnvironment:
    """See :class:`engine.spec.Tools`."""

    roles: frozenset[Role] = frozenset({"tool"})

    def __init__(self, settings: Tools, index: Index | None, tenant: str, sandbox: Callable[[], RunsCode]) -> None:
        self._settings = settings
        self._index = index
        self._tenant = tenant
        self._sandbox = sandbox

    @classmethod
    async def make(
        cls, settings: Tools, files: TenantFiles, tenant: str, sandbox: Callable[[], RunsCode]
    ) -> ToolsEnvironment:
        """Read and index the job's documents, in a thread. Raises DatasetError.

        ``sandbox``: where the tool ``python`` runs the tenant's programs; asked for by the first episode that has it.
        """
        index = None
        if "search" in settings.tools and settings.documents_sha256:
            index = await asyncio.to_thread(lambda: Index(files.documents(settings.documents_sha256)))
        return cls(settings, index, tenant, sandbox)

    async def start(self, row: DatasetRow, seed: int) -> ToolsEpisode:
        return ToolsEpisode({tool.name: tool for tool in self._make_tools(row)})

    def _make_tools(self, row: DatasetRow) -> list[Tool]:
        make: dict[str, Callable[[], Tool]] = {
            "calculator": Calculator,
            "search": lambda: self._search(row),
            "python": lambda: Python(self._sandbox(), self._tenant),
        }
        return [make[name]() for name in self._settings.tools]

    def _search(self, row: DatasetRow) -> Search:
        try:
            own = row_documents(row.metadata)
        except DatasetError as error:
            raise EpisodeError(str(error)) from None
        indexes = [index for index in (self._index, _row_index(tuple(own)) if own else None) if index is not None]
        return Search(indexes, self._settings.search_results)


class ToolsEpisode:
    """Counts the calls it answers, and those it could not read."""

    def __init__(self, tools: dict[str, Tool]) -> None:
        self.opening: list[TurnMessage] = []
        self._tools = tools
        self._counts = {"tool_calls": 0.0, "malformed_calls": 0.0}

    async def reply(self, text: str) -> Observation:
        calls = parse_calls(text)
        if not calls:
            return Observation([], done=True, parts=dict(self._counts))
        results = [await self._answer(call) for call in calls[:MAX_CALLS]]
        if len(calls) > MAX_CALLS:
            results.append(f"Error: only the first {MAX_CALLS} calls of a reply are answered.")
        messages = [TurnMessage("tool", result) for result in results]
        return Observation(messages, done=False, parts=dict(self._counts))

    async def close(self) -> None:
        pass

    async def _answer(self, call: ToolCall | MalformedCall) -> str:
        if isinstance(call, MalformedCall):
            return self._malformed(call.problem)
        tool = self._tools.get(call.name)
        if tool is None:
            return self._malformed(f"There is no tool {call.name[:80]!r}; there is {', '.join(self._tools)}.")
        if problem := _problem(tool.parameters, call.arguments):
            return self._malformed(f"The arguments of {call.name} are wrong: {problem}.")
        self._counts["tool_calls"] += 1
        try:
            return await tool.call(call.arguments)
        except ToolError as error:
            return f"Error: {error}"

    def _malformed(self, problem: str) -> str:
        self._counts["malformed_calls"] += 1
        return f"Error: {problem}"


@lru_cache(maxsize=128)
def _row_index(documents: tuple[Document, ...]) -> Index:
    """The episodes of a group share their row, and a row comes again in every epoch."""
    return Index(list(documents))


def _problem(schema: dict[str, Any], arguments: dict[str, Any]) -> str:
    error = jsonschema.exceptions.best_match(jsonschema.Draft202012Validator(schema).iter_errors(arguments))
    return "" if error is None else error.message[:200]
