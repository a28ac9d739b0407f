"""A calculator: arithmetic only, read by Python's parser and computed here, never evaluated as code.

Invariant: a call takes milliseconds and kilobytes whatever the expression is: its length, its depth and the size of
every whole number on the way are limited.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from typing import Any

from engine.environments.tools.protocol import ToolError

MAX_CHARACTERS = 500
MAX_BITS = 4096
"""Of a whole number."""
MAX_ROUNDING_DIGITS = 300

Number = int | float


def _round(value: Number, digits: Number = 0) -> Number:
    """Python's own computes 10 ** -digits for a negative number of digits, however large."""
    if not isinstance(digits, int) or abs(digits) > MAX_ROUNDING_DIGITS:
        raise ToolError(f"round to a whole number of digits up to {MAX_ROUNDING_DIGITS}")
    return round(value, digits) if digits else round(value)


OPERATORS: dict[type, Callable[[Any, Any], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
FUNCTIONS: dict[str, Callable[..., Number]] = {
    "abs": abs,
    "ceil": math.ceil,
    "cos": math.cos,
    "exp": math.exp,
    "floor": math.floor,
    "gcd": math.gcd,
    "log": math.log,
    "log10": math.log10,
    "log2": math.log2,
    "max": max,
    "min": min,
    "round": _round,
    "sin": math.sin,
    "sqrt": math.sqrt,
    "tan": math.tan,
}
CONSTANTS = {"pi": math.pi, "e": math.e}


class Calculator:
    """See the module's docstring."""

    name = "calculator"
    description = (
        "Compute an arithmetic expression: + - * / // % ** (or ^), brackets, pi, e and the functions "
        f"{', '.join(FUNCTIONS)}."
    )
    parameters = {
        "type": "object",
        "properties": {"expression": {"type": "string", "description": "For example (3 + 4) * 2 ** 5."}},
        "required": ["expression"],
    }

    async def call(self, arguments: dict[str, Any]) -> str:
        return calculate(arguments["expression"])


def calculate(expression: str) -> str:
    """The value of an expression. Raises ToolError."""
    if len(expression) > MAX_CHARACTERS:
        raise ToolError(f"the expression is longer than {MAX_CHARACTERS} characters")
    source = expression.strip().replace("^", "**").replace("\u00d7", "*").replace("\u00f7", "/").replace("\u2212", "-")
    try:
        value = _value(ast.parse(source, mode="eval").body)
    except (SyntaxError, ValueError, MemoryError, RecursionError, TypeError, ArithmeticError) as error:
        message = error.msg if isinstance(error, SyntaxError) else str(error)
        raise ToolError(f"{expression!r} cannot be computed: {message}") from None
    if isinstance(value, float):
        # Twelve digits hide the noise of binary fractions: 0.1 + 0.2 is 0.3.
        return f"{value:.12g}"
    return str(value)


def _value(node: ast.expr) -> Number:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        return _checked(node.value)
    if isinstance(node, ast.Name) and node.id in CONSTANTS:
        return CONSTANTS[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        value = _value(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        return _checked(_power(_value(node.left), _value(node.right)))
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return _checked(OPERATORS[type(node.op)](_value(node.left), _value(node.right)))
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in FUNCTIONS
        and not node.keywords
    ):
        return _checked(FUNCTIONS[node.func.id](*(_value(argument) for argument in node.args)))
    raise ToolError("only numbers, arithmetic operators, brackets and the functions of the calculator are understood")


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, int) and isinstance(exponent, int) and abs(exponent) * base.bit_length() > MAX_BITS:
        raise ToolError(f"{base} ** {exponent} is too large")
    value = base**exponent
    if isinstance(value, complex):
        raise ToolError("the result is not a real number")
    return value


def _checked(value: Number) -> Number:
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise ToolError("a number on the way is too large")
    if isinstance(value, float) and not math.isfinite(value):
        raise ToolError("a number on the way is not finite")
    return value
