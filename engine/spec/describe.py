"""What a grader does, in one plain sentence for people."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engine.spec.rewards import (
    Brevity,
    CodeTests,
    EnvironmentReward,
    ExactMatch,
    Format,
    Grader,
    JsonPath,
    JsonSchema,
    Judge,
    LabelMatch,
    LengthWindow,
    Maths,
    Mix,
    Numeric,
    Python,
    ReasoningGymScore,
    Regex,
    StringCheck,
    TextSimilarity,
)
from engine.spec.templates import ANSWER, COMPLETION

SHOWN_CHARACTERS = 60

_NAMED = {ANSWER: "the row's answer", COMPLETION: "the completion"}
_STRING = {"eq": "equals", "ne": "does not equal", "like": "contains", "ilike": "contains, in any case,"}
_METRICS = {
    "fuzzy": "edit similarity",
    "bleu": "BLEU",
    "chrf": "chrF",
    "rouge_1": "ROUGE-1",
    "rouge_2": "ROUGE-2",
    "rouge_l": "ROUGE-L",
    "cosine_words": "cosine similarity of words",
    "cosine_characters": "cosine similarity of character trigrams",
}
_PATH = {
    **_STRING,
    "number": "is the same number as",
    "lt": "is less than",
    "le": "is at most",
    "gt": "is greater than",
    "ge": "is at least",
}
_CREDIT = {
    "none": "",
    "mentioned": "; half a point where the right one is mentioned but does not decide",
    "ordered": "; less the farther off it is on their scale",
}


def describe(grader: Grader) -> str:
    """One sentence, with a capital and a full stop."""
    function: Callable[[Any], str] = _SENTENCES[type(grader)]
    text = function(grader)
    return f"{text[0].upper()}{text[1:]}."


def _exact_match(grader: ExactMatch) -> str:
    ignored = [
        *(["upper and lower case"] if grader.ignore_case else []),
        *(["white space around both"] if grader.strip else []),
    ]
    aside = f", {' and '.join(ignored)} ignored" if ignored else ""
    return f"1 where {_text(grader.input)} equals {_text(grader.reference)}{aside}, else 0"


def _string_check(grader: StringCheck) -> str:
    return f"1 where {_text(grader.input)} {_STRING[grader.operation]} {_text(grader.reference)}, else 0"


def _text_similarity(grader: TextSimilarity) -> str:
    measure = f"{_METRICS[grader.metric]} of {_text(grader.input)} and {_text(grader.reference)}"
    if grader.threshold is None:
        return f"the {measure}, from 0 to 1"
    return f"1 where the {measure} is at least {grader.threshold:g}, else 0"


def _numeric(grader: Numeric) -> str:
    within = f"within {grader.tolerance:g}"
    if grader.relative_tolerance:
        within += f" or {100 * grader.relative_tolerance:.4g}% of its size"
    return f"1 where the last number in {_text(grader.input)} equals that of {_text(grader.reference)} {within}, else 0"


def _maths(grader: Maths) -> str:
    return f"1 where {_text(grader.input)} is mathematically equivalent to {_text(grader.reference)}, else 0"


def _regex(grader: Regex) -> str:
    where = f"{_quoted(grader.pattern)} {'matches all of' if grader.full else 'is found in'} {_text(grader.input)}"
    if not grader.group_equals_answer:
        return f"1 where the pattern {where}, else 0"
    group = f"group {grader.group}" if grader.group else "the first group"
    kind = " as a number" if grader.compare_as == "number" else ""
    return f"1 where the pattern {where} and {group} equals {_text(grader.reference)}{kind}, else 0"


def _label_match(grader: LabelMatch) -> str:
    names = _listed([label.name for label in grader.labels])
    mention = "only mention" if grader.mention == "only" else f"{grader.mention} mention"
    return (
        f"1 where the {mention} of {names} in {_text(grader.input)} is the label of {_text(grader.reference)}"
        f"{_CREDIT[grader.partial_credit]}, else 0"
    )


def _json_schema(grader: JsonSchema) -> str:
    return f"1 where {_text(grader.input)} is JSON that satisfies the schema, else 0"


def _json_path(grader: JsonPath) -> str:
    which = {"all": "every value", "any": "any value", "first": "the first value"}[grader.values]
    if grader.operation == "exists":
        return f"1 where {_quoted(grader.path)} finds something in the JSON of {_text(grader.input)}, else 0"
    return (
        f"1 where {which} that {_quoted(grader.path)} picks from the JSON of {_text(grader.input)} "
        f"{_PATH[grader.operation]} {_text(grader.reference)}, else 0"
    )


def _brevity(grader: Brevity) -> str:
    return f"1 up to {grader.target} characters of {_text(grader.input)}, falling to 0 at {grader.limit}"


def _length_window(grader: LengthWindow) -> str:
    beyond = f", falling to 0 at {grader.slack} beyond" if grader.slack else ", else 0"
    return f"1 where {_text(grader.input)} has {grader.minimum} to {grader.maximum} {grader.unit}{beyond}"


def _format(grader: Format) -> str:
    asked = [
        *([f"the tags {_listed([f'<{tag}>' for tag in grader.tags])}"] if grader.tags else []),
        *([f"the sections {_listed(grader.sections)}"] if grader.sections else []),
    ]
    outside = " and nothing outside the tags" if grader.nothing_outside else ""
    credit = "the share of it that is right" if grader.partial_credit else "0"
    return f"1 where {_text(grader.input)} has {' and '.join(asked)} in this order{outside}, else {credit}"


def _reasoning_gym(grader: ReasoningGymScore) -> str:
    return f"the score of reasoning-gym's dataset {grader.dataset}"


def _environment(grader: EnvironmentReward) -> str:
    return f"the environment's {grader.part}, {grader.low:g} to {grader.high:g} mapped to 0 to 1"


def _python(grader: Python) -> str:
    called = " with the samples of a group" if grader.batch else ""
    return f"what the Python function {grader.function} returns, called in the sandbox{called}"


def _code_tests(grader: CodeTests) -> str:
    if grader.score == "fraction":
        return "the share of assertions that hold where the completion is run against the row's tests in the sandbox"
    return "1 where the completion, run in the sandbox, passes all of the row's tests, else 0"


def _judge(grader: Judge) -> str:
    if grader.labels:
        labels = _listed([f"{label} ({score:g})" for label, score in grader.labels.items()])
        return f"the base model's verdict, read as {labels}"
    return f"the base model's verdict, a number from {grader.low:g} to {grader.high:g} mapped to 0 to 1"


def _mix(grader: Mix) -> str:
    if grader.formula is not None:
        return f"the formula {grader.formula.strip()} over {_listed([part.name for part in grader.parts])}"
    weight = sum(part.weight for part in grader.parts)
    shares = _listed([f"{part.name} ({part.weight / weight:.0%})" for part in grader.parts])
    return f"the weighted mean of {shares}"


_SENTENCES: dict[type, Callable[[Any], str]] = {
    ExactMatch: _exact_match,
    StringCheck: _string_check,
    TextSimilarity: _text_similarity,
    Numeric: _numeric,
    Maths: _maths,
    Regex: _regex,
    LabelMatch: _label_match,
    JsonSchema: _json_schema,
    JsonPath: _json_path,
    Brevity: _brevity,
    LengthWindow: _length_window,
    Format: _format,
    ReasoningGymScore: _reasoning_gym,
    EnvironmentReward: _environment,
    Python: _python,
    CodeTests: _code_tests,
    Judge: _judge,
    Mix: _mix,
}


def _text(template: str) -> str:
    return _NAMED.get(template.strip()) or _quoted(template)


def _quoted(text: str) -> str:
    return f"“{text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + '…'}”"


def _listed(names: list[str]) -> str:
    shown = names if len(names) <= 6 else [*names[:5], f"{len(names) - 5} more"]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
