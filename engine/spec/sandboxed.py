"""Graders that run a stranger's code in the sandbox: tenant Python, and completions that are programs.

Code is validated when it is saved, by parsing alone; it never runs outside the sandbox. See engine/sandbox/README.md.
"""

from __future__ import annotations

import ast
import warnings
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from engine.spec.contract import Contract
from engine.spec.templates import check_template

REWARD_PARAMETERS = ("prompt", "completion", "row", "turns")
"""What a reward function may ask for, by the name of the parameter."""
BATCH_PARAMETERS = ("samples",)

MAX_CODE = 65_536

CodeTemplate = Annotated[str, Field(max_length=MAX_CODE), AfterValidator(check_template)]
"""Code, or a reference to code; see ``engine.spec.templates``."""


class Python(Contract):
    """A function of the tenant, run in the sandbox. Every call starts from a fresh state.

    The function declares any of these parameters and gets them by name: ``prompt`` (str, the row's last message),
    ``completion`` (str, the model's last reply), ``row`` (dict: ``messages``, ``answer``, ``metadata``, ``split``) and
    ``turns`` (list of ``{"role", "content"}``: all that was said after the row's messages). It may be ``async``.

    It returns a number in [0, 1] (True is 1), or a dict with the number under ``total`` or ``reward``, optionally
    ``reason`` (str) and named parts, each a finite number: ``{"total": 0.5, "format": 1, "reason": "..."}``.
    """

    type: Literal["python"] = "python"
    code: str = Field(min_length=1, max_length=MAX_CODE)
    """The module: imports, helpers and the function. It is executed anew for each call."""
    function: str = Field(default="reward", pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,79}$")
    """Name of the function in the module."""
    batch: bool = False
    """The function is ``def rewards(samples)``: it gets a list of dicts with the four keys above and returns a list
    of as many results. The samples of one group then share one call, one time limit and one state."""

    @model_validator(mode="after")
    def _defines_the_function(self) -> Python:
        tree = parse(self.code)
        check_function(tree, self.function, BATCH_PARAMETERS if self.batch else REWARD_PARAMETERS)
        return self


class CodeTests(Contract):
    """The completion is a Python program: it is run with the row's tests in the sandbox.

    The program is the completion's last fenced code block that parses, else the completion. Where it does not define
    ``entry_point`` itself it continues ``prefix``, as in HumanEval; where it does, ``prefix`` still comes first, for
    its imports and helpers.
    """

    type: Literal["code_tests"] = "code_tests"
    tests: CodeTemplate = Field(default="{{ row.metadata.test }}", min_length=1)
    """Template of the tests: Python with ``assert``. It runs after the program; functions named ``test_*`` are called,
    and so is ``check(candidate)`` with the function named ``entry_point``."""
    entry_point: CodeTemplate | None = None
    """Template of the name of the function under test, e.g. ``{{ row.metadata.entry_point }}``."""
    prefix: CodeTemplate = ""
    """Template of the code that comes before the program, e.g. ``{{ row.metadata.prompt }}``."""
    score: Literal["all", "fraction"] = "all"
    """``all``: 1 where every assertion holds, else 0. ``fraction``: the share of assertions that hold."""

    @field_validator("tests")
    @classmethod
    def _parses(cls, tests: str) -> str:
        if "{{" not in tests:
            parse(tests)
        return tests


def parse(code: str) -> ast.Module:
    """The module's syntax tree. Raises ValueError with line and column where it is not valid Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(code, "reward.py")
    except SyntaxError as error:
        where = f"line {error.lineno}, column {error.offset}: " if error.lineno else ""
        raise ValueError(where + error.msg) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"not valid Python: {str(error) or 'nested too deeply'}") from None


def check_function(tree: ast.Module, name: str, offered: tuple[str, ...]) -> None:
    """Raises ValueError unless the module defines ``name`` at its top level, asking only for what is offered."""
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    found = [function for function in functions if function.name == name]
    if not found:
        others = ", ".join(function.name for function in functions) or "none"
        raise ValueError(f"there is no function '{name}' at the top level of the code (functions there: {others})")
    arguments = found[-1].args
    positional = [*arguments.posonlyargs, *arguments.args]
    with_default = len(arguments.defaults)
    required = positional[: len(positional) - with_default] + [
        argument
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        if default is None
    ]
    unknown = [argument.arg for argument in required if argument.arg not in offered]
    if unknown or arguments.posonlyargs:
        raise ValueError(
            f"line {found[-1].lineno}: '{name}' asks for '{(unknown or [positional[0].arg])[0]}'; parameters are "
            f"passed by name and may be any of: {', '.join(offered)}"
        )
