"""What a reward may be, where its faults are named, and how it is described."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from engine.spec import Contract, Mix, MixPart, Regex, RewardSpec, describe

LABELS = [{"name": "yes"}, {"name": "no", "synonyms": ["nope"]}]
SHORT = {"type": "brevity", "target": 10, "limit": 20}


def mix(*formula: str, names: tuple[str, ...] = ("a", "b"), **more: Any) -> dict[str, Any]:
    parts = [{"name": name, "grader": SHORT} for name in names]
    return {"type": "mix", "parts": parts, **({"formula": formula[0]} if formula else {}), **more}


@pytest.mark.parametrize(
    ("grader", "place", "says"),
    [
        ({"type": "exact_match", "reference": "{{ row.anser }}"}, "reference", "'anser' is not in row"),
        ({"type": "exact_match", "input": "{{ sample }}"}, "input", "sample alone is no value"),
        ({"type": "string_check", "operation": "gt"}, "operation", "'eq', 'ne', 'like' or 'ilike'"),
        ({"type": "text_similarity", "metric": "meteor"}, "metric", "'fuzzy'"),
        ({"type": "text_similarity", "threshold": 1.5}, "threshold", "less than or equal to 1"),
        ({"type": "numeric", "relative_tolerance": 1}, "relative_tolerance", "less than 1"),
        ({"type": "regex", "pattern": "("}, "pattern", "not a valid regular expression"),
        ({"type": "regex", "pattern": "(?P<x>a)", "group": "y"}, "group", "no group 'y'; it has 1, named x"),
        ({"type": "regex", "pattern": "(a)", "group": "2"}, "group", "no group '2'; it has 1"),
        ({"type": "label_match", "labels": [LABELS[0]]}, "labels", "at least 2"),
        ({"type": "label_match", "labels": [*LABELS, {"name": "Nope"}]}, "labels", "stands for both 'no' and 'Nope'"),
        ({"type": "label_match", "labels": [*LABELS, {"name": "YES"}]}, "labels", "stands for both 'yes' and 'YES'"),
        ({"type": "json_schema", "json_schema": {"type": "nothing"}}, "json_schema", "not a valid JSON schema"),
        ({"type": "json_path", "path": "$.a["}, "path", "not a valid JSON path"),
        ({"type": "brevity", "target": 9, "limit": 9}, "limit", "limit must be greater than target"),
        ({"type": "length_window", "minimum": 5, "maximum": 4}, "maximum", "maximum must be at least minimum"),
        ({"type": "format"}, "sections", "at least one tag or one section"),
        ({"type": "format", "tags": ["a b"]}, "tags.0", "match pattern"),
        ({"type": "format", "tags": ["a", "A"]}, "tags", "stands twice"),
        ({"type": "format", "sections": ["A"], "nothing_outside": True}, "nothing_outside", "no tag is asked for"),
        ({"type": "environment", "low": 2}, "high", "high must be greater than low"),
        ({"type": "judge", "prompt": "How good?"}, "prompt", "put {{ sample.completion }} into the prompt"),
        ({"type": "judge", "low": 10}, "high", "high must be greater than low"),
        ({"type": "judge", "labels": {"good": 2}}, "labels.good", "less than or equal to 1"),
        ({"type": "judge", "labels": {"good": 1, "GOOD": 0}}, "labels", "more than upper and lower case"),
        ({"type": "judge", "labels": {"good": 1, "better": 1}}, "labels", "tell nothing apart"),
        (mix("a *"), "formula", "cannot be read"),
        (mix("a + c"), "formula", "names 'c', which is no part; the parts are a, b"),
        (mix("max(a, max)", names=("a", "max")), "formula", "a part is called max"),
        (mix(names=("a", "a")), "parts", "two parts have the same name"),
        ({"type": "mix", "parts": [{"name": "a", "grader": mix()}]}, "parts.0.grader", "does not match any"),
    ],
)
def test_a_fault_is_named_at_its_field(grader: dict[str, Any], place: str, says: str) -> None:
    with pytest.raises(ValidationError) as error:
        RewardSpec.model_validate({"grader": grader})
    (fault,) = error.value.errors()
    root, tag, *path = fault["loc"]  # the union's tag stands between
    assert (root, tag) == ("grader", grader["type"])
    assert ".".join(map(str, path)) == place
    assert says in fault["msg"]


def test_a_spec_of_before_means_the_same() -> None:
    old = {"type": "regex", "pattern": "(a)", "full": False, "ignore_case": False, "group_equals_answer": True}
    grader = RewardSpec.model_validate({"grader": old}).grader
    assert isinstance(grader, Regex)
    assert (grader.input, grader.reference) == ("{{ sample.completion }}", "{{ row.answer }}")
    parts = [{"name": "a", "weight": 2, "grader": {"type": "maths"}}]
    weighted = RewardSpec.model_validate({"grader": {"type": "mix", "parts": parts}}).grader
    assert isinstance(weighted, Mix)
    assert weighted.formula is None


@pytest.mark.parametrize(
    ("grader", "sentence"),
    [
        (
            {"type": "exact_match"},
            "1 where the completion equals the row's answer, white space around both ignored, else 0.",
        ),
        ({"type": "string_check", "operation": "like"}, "1 where the completion contains the row's answer, else 0."),
        (
            {"type": "text_similarity", "metric": "rouge_l", "reference": "{{ row.metadata.gold }}"},
            "The ROUGE-L of the completion and “{{ row.metadata.gold }}”, from 0 to 1.",
        ),
        (
            {"type": "numeric", "relative_tolerance": 0.01},
            "1 where the last number in the completion equals that of the row's answer within 1e-06 or 1% of its size, "
            "else 0.",
        ),
        (
            {"type": "regex", "pattern": "<a>(.*)</a>", "group_equals_answer": True},
            "1 where the pattern “<a>(.*)</a>” is found in the completion and the first group equals the row's answer, "
            "else 0.",
        ),
        (
            {"type": "label_match", "labels": LABELS},
            "1 where the last mention of yes and no in the completion is the label of the row's answer, else 0.",
        ),
        (
            {"type": "json_path", "path": "$.total", "operation": "ge", "reference": "3"},
            "1 where every value that “$.total” picks from the JSON of the completion is at least “3”, else 0.",
        ),
        (
            {"type": "length_window", "minimum": 3, "maximum": 9, "slack": 4},
            "1 where the completion has 3 to 9 words, falling to 0 at 4 beyond.",
        ),
        (
            {"type": "format", "tags": ["think", "answer"], "nothing_outside": True},
            "1 where the completion has the tags <think> and <answer> in this order and nothing outside the tags, else "
            "0.",
        ),
        ({"type": "judge"}, "The base model's verdict, a number from 0 to 10 mapped to 0 to 1."),
        ({"type": "judge", "labels": {"good": 1, "bad": 0}}, "The base model's verdict, read as good (1) and bad (0)."),
        (
            {
                "type": "mix",
                "parts": [
                    {"name": "right", "weight": 3, "grader": {"type": "maths"}},
                    {"name": "short", "weight": 1, "grader": SHORT},
                ],
            },
            "The weighted mean of right (75%) and short (25%).",
        ),
        (mix("a * b"), "The formula a * b over a and b."),
    ],
)
def test_a_grader_is_described_in_one_sentence(grader: dict[str, Any], sentence: str) -> None:
    assert describe(RewardSpec.model_validate({"grader": grader}).grader) == sentence


def test_every_grader_has_a_description() -> None:
    from engine.spec.describe import _SENTENCES

    members = {model.model_fields["type"].default for model in _SENTENCES if issubclass(model, Contract)}
    schema = RewardSpec.model_json_schema()["properties"]["grader"]["discriminator"]["mapping"]
    assert members == set(schema)


def test_a_mix_of_all_kinds_is_a_reward() -> None:
    grader = Mix.model_validate(mix("a * b"))
    assert isinstance(grader.parts[0], MixPart)
    assert RewardSpec(grader=grader).model_dump(mode="json")["grader"]["clip"] is True
