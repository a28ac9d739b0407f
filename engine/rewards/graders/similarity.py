"""How alike two texts are, by the usual measures."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from engine.rewards.graders.source import GraderError, Source
from engine.spec import TextSimilarity
from engine.types import Score

ROUGE = {"rouge_1": "rouge1", "rouge_2": "rouge2", "rouge_l": "rougeL"}
GRAM = 3

_WORD = re.compile(r"\w+")
_LATIN = re.compile(r"[a-z0-9]", re.IGNORECASE)


def text_similarity(grader: TextSimilarity, source: Source) -> Score:
    text, reference = source.text(grader.input).strip(), source.text(grader.reference).strip()
    if not reference:
        raise GraderError("the reference is empty, so nothing can be like it")
    if grader.ignore_case:
        text, reference = text.casefold(), reference.casefold()
    value = min(max(_measure(grader.metric)(text, reference), 0.0), 1.0) if text else 0.0
    if grader.threshold is None:
        return Score(value)
    if value >= grader.threshold:
        return Score(1.0)
    return Score(0.0, reason=f"the similarity is {value:.3f}, below {grader.threshold:g}")


def load(metric: str) -> None:
    """Import what a metric needs, which takes up to seconds."""
    _measure(metric)


@lru_cache(maxsize=16)
def _measure(metric: str) -> Callable[[str, str], float]:
    if metric == "fuzzy":
        from rapidfuzz import fuzz

        return lambda text, reference: fuzz.ratio(text, reference) / 100
    if metric in {"bleu", "chrf"}:
        from sacrebleu.metrics import BLEU, CHRF

        scorer: Any = BLEU(effective_order=True) if metric == "bleu" else CHRF()
        return lambda text, reference: scorer.sentence_score(text, [reference]).score / 100
    if metric in ROUGE:
        return _rouge(ROUGE[metric])
    return _cosine_of_words if metric == "cosine_words" else _cosine_of_characters


def _rouge(name: str) -> Callable[[str, str], float]:
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer([name], use_stemmer=True)

    def measure(text: str, reference: str) -> float:
        if not _LATIN.search(reference):
            raise GraderError("ROUGE reads a-z and 0-9 only, and the reference has none of them; use chrf instead")
        return float(scorer.score(reference, text)[name].fmeasure)

    return measure


def _cosine_of_words(text: str, reference: str) -> float:
    words = Counter(_WORD.findall(reference.casefold()))
    if not words:
        raise GraderError("the reference has no word in it; use cosine_characters instead")
    return _cosine(Counter(_WORD.findall(text.casefold())), words)


def _cosine_of_characters(text: str, reference: str) -> float:
    return _cosine(_grams(text), _grams(reference))


def _grams(text: str) -> Counter[str]:
    """Runs of ``GRAM`` characters; the text itself where it is shorter."""
    return Counter(text[place : place + GRAM] for place in range(max(len(text) - GRAM + 1, 1)))


def _cosine(one: Counter[str], other: Counter[str]) -> float:
    shared = sum(count * other[key] for key, count in one.items())
    lengths = math.sqrt(sum(count**2 for count in one.values())) * math.sqrt(sum(c**2 for c in other.values()))
    return shared / lengths if shared else 0.0
