"""Arithmetic over named scores, such as ``correct * (1 if tidy > 0.5 else 0.2) + 0.1 * short``.

Numbers, names, ``+ - * /``, comparisons (1 or 0), ``and or not``, ``a if condition else b``, ``min max abs clip``:
nothing else. Python's syntax is parsed, never run: the tree is walked by ``evaluate``.

Invariant: a formula that was checked can fail only by dividing by zero or by a result that is not finite, and takes
time linear in its length, which is limited.
"""

from __future__ import annotations

import ast
import math
import operator
import warnings
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache

MAX_CHARACTERS = 1000
MAX_DEPTH = 50

_OPERATORS: dict[type, Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_UNARY: dict[type, Callable[[float], float]] = {ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Not: operator.not_}


def _clip(value: float, low: float = 0.0, high: float = 1.0) -> float:
    return min(max(value, low), high)


_FUNCTIONS: dict[str, tuple[Callable[..., float], int, int]] = {
    "min": (min, 2, 16),
    "max": (max, 2, 16),
    "abs": (abs, 1, 1),
    "clip": (_clip, 1, 3),
}
"""Name -> function, fewest and most arguments."""

FUNCTION_NAMES = frozenset(_FUNCTIONS)


def check_formula(formula: str, names: Collection[str]) -> None:
    """Raise ValueError, in plain words, where the formula is not one over ``names``."""
    _check(_parse(formula), names, 0)


def evaluate(formula: str, values: Mapping[str, float]) -> float:
    """The formula's value.

    Args:
        values: by name; all that the formula names.

    Raises:
        ZeroDivisionError: it divides by zero.
        ValueError: it was never checked.
    """
    return _value(_parse(formula), values)


@lru_cache(maxsize=256)
def _parse(formula: str) -> ast.expr:
    if len(formula) > MAX_CHARACTERS:
        raise ValueError(f"the formula is longer than {MAX_CHARACTERS} characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(formula.strip(), mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"the formula cannot be read: {error.msg} at character {error.offset or 1}") from None
    except (ValueError, MemoryError, RecursionError):
        raise ValueError("the formula cannot be read: it is nested too deeply or has a character of no use") from None


def _check(node: ast.expr, names: Collection[str], depth: int) -> None:
    if depth > MAX_DEPTH:
        raise ValueError(f"the formula is nested more than {MAX_DEPTH} deep")
    match node:
        case ast.Constant(value=value):
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(_number(value)):
                raise ValueError(f"the formula may have numbers only, not {str(value)[:40]!r}")
        case ast.Name(id=name):
            if name not in names:
                raise ValueError(f"the formula names {name!r}, which is no part; the parts are {', '.join(names)}")
        case ast.BinOp(op=op) | ast.UnaryOp(op=op) if type(op) not in _OPERATORS and type(op) not in _UNARY:
            raise ValueError(f"the formula may not use {type(op).__name__.lower()}; it may use + - * /")
        case ast.Compare(ops=ops) if any(type(op) not in _OPERATORS for op in ops):
            raise ValueError("the formula may compare with < <= > >= == != only")
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            _, fewest, most = _FUNCTIONS[name]
            if not fewest <= len(args) <= most:
                takes = str(fewest) if fewest == most else f"{fewest} to {most}"
                raise ValueError(f"{name} takes {takes} values, not {len(args)}")
            for argument in args:
                _check(argument, names, depth + 1)
            return
        case ast.Call():
            raise ValueError(f"the formula may call {', '.join(_FUNCTIONS)} only, with plain values")
        case ast.BinOp() | ast.UnaryOp() | ast.Compare() | ast.BoolOp() | ast.IfExp():
            pass
        case _:
            raise ValueError(f"the formula may not have {type(node).__name__.lower()} in it")
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            _check(child, names, depth + 1)


def _value(node: ast.expr, values: Mapping[str, float]) -> float:
    match node:
        case ast.Constant(value=int() | float() as value):
            return _number(value)
        case ast.Name(id=name):
            return values[name]
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATORS[type(op)](_value(left, values), _value(right, values))
        case ast.UnaryOp(op=op, operand=operand):
            return float(_UNARY[type(op)](_value(operand, values)))
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            sides = [_value(side, values) for side in [left, *comparators]]
            pairs = zip(ops, sides, sides[1:], strict=False)
            return float(all(_OPERATORS[type(op)](one, other) for op, one, other in pairs))
        case ast.BoolOp(op=ast.And(), values=operands):
            return float(all(_value(operand, values) for operand in operands))
        case ast.BoolOp(values=operands):
            return float(any(_value(operand, values) for operand in operands))
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return _value(body if _value(test, values) else orelse, values)
        case ast.Call(func=ast.Name(id=name), args=args):
            return _FUNCTIONS[name][0](*(_value(argument, values) for argument in args))
    raise ValueError("the formula was never checked")


def _number(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf
