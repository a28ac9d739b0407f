"""Mathematical equivalence by math-verify (Hugging Face), which parses LaTeX and plain expressions into sympy.

math-verify looks for an expression inside prose: the last boxed one, one in ``$...$`` or another LaTeX environment, or
a plain number or arithmetic expression. A text that is nothing but a formula, such as ``x^2 + 1``, has no such mark;
it is boxed before parsing, since of the bare text math-verify would read the ``1`` alone. Tags such as
``<answer>18</answer>`` are taken out: math-verify would not see a number that touches one.

math-verify's own time limits need signals and are off: a parse may run for ever (``9^{9^{9^9}}``). Only call this
where somebody ends the process.
"""

from __future__ import annotations

import logging
import re
from functools import lru_cache
from typing import Any

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its time limit is off

LONGEST_FORMULA = 300
_TARGETS = [LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig()]
_DELIMITER = re.compile(r"\$|\\\(|\\\[|\\boxed")
_COMMAND = re.compile(r"\\(?:text|mathrm|textbf|mathbf)\s*\{[^}]*\}|\\[A-Za-z]+")
_CLOSING_TAG = re.compile(r"</([A-Za-z][A-Za-z0-9_-]{0,39})>")
_TAG = re.compile(r"</?([A-Za-z][A-Za-z0-9_-]{0,39})>")
_WORD = re.compile(r"[A-Za-z]{3,}")


def extract(text: str) -> list[Any]:
    """What the text states, as sympy expressions and the string read; empty where there is none."""
    text = _without_tags(text)
    if _is_formula(text):
        text = "\\boxed{" + text.strip().rstrip(".") + "}"
    expressions: list[Any] = parse(text, _TARGETS, parsing_timeout=None)
    return expressions


extract_answer = lru_cache(maxsize=256)(extract)
"""``extract`` for reference answers, which every episode of a group shares."""


def equivalent(answer: list[Any], completion: list[Any]) -> bool:
    """Whether two extractions agree: symbolically, or numerically to 6 decimals."""
    return bool(verify(answer, completion, timeout_seconds=None))


def _without_tags(text: str) -> str:
    """The text without tags that are closed somewhere in it; a lone ``<b>`` may be two inequalities."""
    names = set(_CLOSING_TAG.findall(text))
    return _TAG.sub(lambda tag: "\n" if tag[1] in names else tag[0], text) if names else text


def _is_formula(text: str) -> bool:
    """One line without delimiters in which, LaTeX commands aside, no word stands."""
    text = text.strip()
    return (
        0 < len(text) <= LONGEST_FORMULA
        and "\n" not in text
        and not _DELIMITER.search(text)
        and not _WORD.search(_COMMAND.sub("", text))
    )
