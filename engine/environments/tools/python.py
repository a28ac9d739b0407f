"""Runs a program of the model in the sandbox (``engine.sandbox``): what it prints is the answer.

Invariant: the program runs nowhere but in the sandbox, in a state of its own: no call sees what another has left.
"""

from __future__ import annotations

from typing import Any, Protocol

from engine.environments.protocol import EpisodeError
from engine.environments.tools.protocol import ToolError
from engine.spec import DatasetRow, Message
from engine.spec import Python as PythonFunction
from engine.types import Sample, Score

TIMEOUT_SECONDS = 5.0
MAX_CHARACTERS = 4000
"""Of what the model is shown, from the end: errors come last."""

RUN = PythonFunction(
    code='''
import ast
import linecache
import traceback


def reward(completion):
    """Run the program; the value of an expression on its last line is printed too, as people expect of a console."""
    linecache.cache["program"] = (len(completion), None, completion.splitlines(True), "program")
    names = {"__name__": "__main__"}
    try:
        tree = ast.parse(completion, "program")
        last = ast.Expression(tree.body.pop().value) if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "program", "exec"), names)
        if last is not None and (value := eval(compile(last, "program", "eval"), names)) is not None:
            print(repr(value))
    except SystemExit:
        pass
    except Exception as error:
        error.__traceback__ = error.__traceback__.tb_next
        traceback.print_exception(error)
    return 1
'''
)
EMPTY_ROW = DatasetRow(messages=[Message(role="user", content="")])


class RunsCode(Protocol):
    """The part of ``engine.sandbox.pool.SandboxPool`` that is needed."""

    async def score_batch(
        self, grader: PythonFunction, samples: list[Sample], *, tenant: str, owner: str, timeout: float
    ) -> list[Score]: ...


class Python:
    """See the module's docstring."""

    name = "python"
    description = (
        "Run a Python program and see what it prints. Standard library, sympy and networkx; no files, no network, "
        f"{TIMEOUT_SECONDS:g} seconds. Every call starts anew."
    )
    parameters = {
        "type": "object",
        "properties": {"code": {"type": "string", "description": "For example print(sum(range(10)))."}},
        "required": ["code"],
    }

    def __init__(self, sandbox: RunsCode, tenant: str) -> None:
        self._sandbox = sandbox
        self._tenant = tenant

    async def call(self, arguments: dict[str, Any]) -> str:
        sample = Sample(EMPTY_ROW, arguments["code"])
        (score,) = await self._sandbox.score_batch(
            RUN, [sample], tenant=self._tenant, owner=self._tenant, timeout=TIMEOUT_SECONDS
        )
        if score.error_kind == "refused":
            raise EpisodeError(f"the tool python cannot be used here: {score.reason}")
        if score.error:
            raise ToolError(f"the program was stopped: {score.reason}")
        printed = score.console.strip()
        return printed[-MAX_CHARACTERS:] if printed else "(nothing was printed)"
