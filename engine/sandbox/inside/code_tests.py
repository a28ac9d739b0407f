"""A completion that is a program, run with its tests: HumanEval and its like.

Every ``assert`` of the tests is counted: one that fails, or whose expression raises, does not stop the others. A score
is given only after the tests have run to their end, so a program that exits early has none.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from types import CodeType
from typing import Any

from engine.sandbox.inside.calls import FILE_NAME, new_module

FENCED = re.compile(r"```[^\n`]*\n(.*?)(?:```|\Z)", re.DOTALL)
TESTS_NAME = "tests.py"
TALLY = "__tally__"


class Tally:
    """Assertions that held, and the first one that did not."""

    def __init__(self) -> None:
        self.held = 0
        self.all = 0
        self.first_failure = ""

    def count(self, holds: bool, line: int) -> None:
        self.all += 1
        if holds:
            self.held += 1
        elif not self.first_failure:
            self.first_failure = f"the assertion in line {line} of the tests does not hold"

    def failed(self, error: Exception, line: int | None = None) -> None:
        self.all += 1
        where = f"line {line} of the tests" if line else "the tests"
        self.first_failure = self.first_failure or f"{where} raised {_words(error)}"


def run_call(call: dict[str, Any]) -> list[dict[str, Any]]:
    """A call's fields are the parameters of ``run_tests``."""
    return [run_tests(**call)]


def run_tests(completion: str, tests: str, entry_point: str, prefix: str, fraction: bool) -> dict[str, Any]:
    """The result of one completion, see ``calls``. Errors are those of the tests; a bad program just scores 0."""
    try:
        checks = _counting(tests)
    except (SyntaxError, ValueError, RecursionError) as error:
        return {"kind": "grader", "reason": f"the row's tests are not valid Python: {_words(error)}"}
    code = next(_programs(completion, prefix, entry_point), None)
    if code is None:
        return _fails("the completion is not valid Python")
    module = new_module("program")
    try:
        exec(code, module)  # noqa: S102 - this is what the sandbox is for
    except Exception as error:
        return _fails(f"the program raised {_words(error)}")
    candidate = module.get(entry_point)
    if entry_point and not callable(candidate):
        return _fails(f"the program defines no function '{entry_point}'")
    tally = module[TALLY] = Tally()
    try:
        exec(checks, module)  # noqa: S102
    except Exception as error:
        tally.failed(error)
    for name in _functions(tests):
        if name.startswith("test_"):
            _run(module.get(name), (), tally)
        elif name == "check" and entry_point:
            _run(module.get(name), (candidate,), tally)
    if not tally.all:
        return {"kind": "grader", "reason": "the row's tests assert nothing"}
    share = tally.held / tally.all
    reason = f"{tally.held} of {tally.all} assertions hold" + (f"; {tally.first_failure}" if share < 1 else "")
    return {"total": share if fraction else float(share == 1), "parts": {}, "reason": reason}


def _programs(completion: str, prefix: str, entry_point: str) -> Iterator[CodeType]:
    """What the completion may mean as a program, the likeliest first."""
    for text in reversed(FENCED.findall(completion)) if "```" in completion else [completion]:
        whole = _defines(text, entry_point) if entry_point else not prefix
        continued = [prefix + text, f"{prefix}    {text}", prefix + textwrap.indent(text, "    ")] if prefix else []
        alone = [f"{prefix}\n\n{text}", text]
        for source in [*alone, *continued] if whole else [*continued, *alone]:
            try:
                yield compile(source, FILE_NAME, "exec")
            except (SyntaxError, ValueError, RecursionError):
                continue


def _run(function: Any, arguments: tuple[Any, ...], tally: Tally) -> None:
    """Call a test. One that asserts nothing counts as one that holds."""
    before = tally.all
    try:
        value = function(*arguments)
        if inspect.iscoroutine(value):
            import asyncio

            asyncio.run(value)
    except Exception as error:
        tally.failed(error)
    if tally.all == before:
        tally.count(True, 0)


class _Count(ast.NodeTransformer):
    """Every assertion becomes a count."""

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        line = node.lineno
        counted = ast.parse(
            f"try: {TALLY}.count(bool(0), {line})\nexcept Exception as __error__: {TALLY}.failed(__error__, {line})"
        ).body[0]
        call = counted.body[0].value  # type: ignore[attr-defined]
        call.args[0].args[0] = node.test
        return ast.fix_missing_locations(ast.copy_location(counted, node))


def _counting(tests: str) -> CodeType:
    return compile(_Count().visit(ast.parse(tests, TESTS_NAME)), TESTS_NAME, "exec")


def _functions(source: str) -> list[str]:
    tree = ast.parse(source)
    return [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def _defines(source: str, name: str) -> bool:
    try:
        return name in _functions(source) or re.search(rf"^{re.escape(name)}\s*=", source, re.MULTILINE) is not None
    except (SyntaxError, ValueError, RecursionError):
        return False


def _fails(reason: str) -> dict[str, Any]:
    return {"total": 0.0, "parts": {}, "reason": reason}


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:200]}"
