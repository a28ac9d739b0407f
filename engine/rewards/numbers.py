"""Numbers in prose: find the last one a text states and read it exactly.

======================  ==============================================================
what counts             examples
======================  ==============================================================
digits                  ``42``, ``007``, ``.5``, ``3.14``; a full stop that ends the sentence is not part of it
sign                    ``-5``, ``−5`` (U+2212), ``+5``, ``-$5``, ``$-5``; the hyphen of ``10-5`` is no sign
thousands               ``1,234,567.89``, LaTeX's ``1{,}234`` and ``1\\,234``, no-break or thin spaces; not ``12,34``
currency                ``$5``, ``\\$5``, ``€5``: ignored
percent                 ``5%``, ``5 \\%``: noted (see ``Number.equals``)
power of ten            ``1.5e3``, ``1.5 × 10^3``, ``1.5 \\times 10^{3}``
fraction                ``3/4``, ``\\frac{3}{4}``, ``1 3/4`` (a mixed number); not the date ``3/4/2024``
======================  ==============================================================

Digits that belong to a word (``H2O``, ``m2``), a subscript or an exponent (``m^2``) are not numbers. Number words
(``three``) and scaling units (``2 million``) are not read. Scanning takes time linear in the text's length.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Context, Decimal

EXACT = Context(prec=200, Emax=10_000_000, Emin=-10_000_000, traps=[])
"""Exact up to 200 significant digits; beyond its range a result is infinite or NaN, never an exception."""

SPACES = "\u00a0\u2009\u202f"  # no-break, thin, narrow no-break: they separate thousands, never words
CURRENCIES = "$€£¥₹₩₽₺₫₪฿"

_LATEX = [
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"\\!"), ""),
    (re.compile(r"\\,"), "\u2009"),
    (re.compile(r"\\([$%])"), r"\1"),
    (re.compile(r"\\times|\\cdot|×"), "*"),
    (re.compile(r"[−–]"), "-"),
    (re.compile(r"\^\{([-+]?[0-9]{1,6})\}"), r"^\1"),
    (re.compile(r"([0-9])\s?(?=\\[dt]?frac)"), r"\1 "),
    (re.compile(r"\\[dt]?frac\s?\{([-+]?[0-9.]+)\}\s?\{([0-9.]+)\}"), r"\1/\2"),
    (re.compile(r"\\[dt]?frac([0-9])([0-9])"), r"\1/\2"),
]

_DECIMAL = r"[0-9]++(?:\.[0-9]++)?"
_NUMBER = re.compile(
    rf"""
    (?<![A-Za-z0-9^]) (?<!\^[-+]) (?<![A-Za-z0-9]_) (?<!_\{{) (?<![0-9]\.)
    (?:
        (?: (?P<whole>[0-9]++)[ ] )? (?<!/) (?P<over>{_DECIMAL})/(?P<under>{_DECIMAL})(?!/)
      | (?P<plain> (?: [0-9]{{1,3}}(?:[,{SPACES}][0-9]{{3}})++(?![0-9]) | [0-9]++ ) (?:\.[0-9]++)?
                 | (?<!\.)\.[0-9]++ )
        (?: [eE](?P<exponent>[-+]?[0-9]{{1,6}})(?![0-9A-Za-z])
          | [ ]?[*x][ ]?10(?:\^|\*\*)(?P<power>[-+]?[0-9]{{1,6}})(?![0-9]) )?
    )
    (?P<percent>\s?%)?
    """,
    re.VERBOSE,
)
_SIGN = re.compile(rf"(?:^|[^0-9A-Za-z)\]}}%])(?:([-+])[{CURRENCIES}]?|[{CURRENCIES}]([-+]))$")


@dataclass(frozen=True)
class Number:
    """A number as stated."""

    value: Decimal
    percent: bool = False

    def equals(self, other: Number, tolerance: float, relative: float = 0.0) -> bool:
        """Whether the two differ by at most ``tolerance``, or by at most ``relative`` of the other's size.

        Where just one of them carries a percent sign, the sign may be a unit (50 % of 50) or a factor (50 % is 0.5):
        either reading is accepted.
        """
        if _close(self.value, other.value, tolerance, relative):
            return True
        if self.percent == other.percent:
            return False
        if self.percent:
            return _close(EXACT.divide(self.value, Decimal(100)), other.value, tolerance, relative)
        return _close(self.value, EXACT.divide(other.value, Decimal(100)), tolerance, relative)

    def __str__(self) -> str:
        text = f"{self.value:f}" if -20 < self.value.adjusted() < 20 else f"{self.value:.6e}"
        return (text if len(text) <= 24 else f"{self.value:.12g}") + ("%" if self.percent else "")


def last_number(text: str) -> Number | None:
    """The last number of the text, or None where there is none.

    >>> last_number("She pays 3 * $1,200 = $3,600.50.").value
    Decimal('3600.50')
    """
    for pattern, replacement in _LATEX:
        text = pattern.sub(replacement, text)
    last = None
    for match in _NUMBER.finditer(text):
        last = match
    if last is None:
        return None
    value = _magnitude(last)
    if not value.is_finite():
        return None
    sign = _SIGN.search(text[max(0, last.start() - 3) : last.start()])
    if sign and "-" in sign.groups():
        value = value.copy_negate()
    return Number(value, percent=last["percent"] is not None)


def _close(value: Decimal, other: Decimal, tolerance: float, relative: float) -> bool:
    limit = max(Decimal(tolerance), EXACT.multiply(Decimal(relative), other.copy_abs()))
    return EXACT.subtract(value, other).copy_abs() <= limit


def _magnitude(match: re.Match[str]) -> Decimal:
    """Value without sign; not finite where it divides by zero."""
    if match["plain"] is None:
        over, under = Decimal(match["over"]), Decimal(match["under"])
        fraction = EXACT.divide(over, under)
        mixed = match["whole"] is not None and over < under
        return EXACT.add(Decimal(match["whole"]), fraction) if mixed else fraction
    digits = re.sub(rf"[,{SPACES}]", "", match["plain"])
    return EXACT.scaleb(EXACT.create_decimal(digits), Decimal(match["exponent"] or match["power"] or 0))
