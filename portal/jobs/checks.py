"""What would stop a job or leave it without a lesson, found before it starts.

A check looks at the spec and the first ``LOOKED_AT`` rows only, and blocks only what cannot work; what might not is a
warning. The engine still checks everything itself when the job starts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from engine.spec import (
    Brevity,
    EnvironmentReward,
    ExactMatch,
    HttpEnvironment,
    JobSpec,
    Maths,
    Mix,
    Numeric,
    OpenEnv,
    ReasoningGym,
    Regex,
    SimpleGrader,
    Tools,
)
from portal.datasets.models import DatasetVersion
from portal.datasets.selectors import preview_rows
from portal.environments.reasoning_gym import suggest_task
from portal.environments.selectors import environment_faults
from portal.jobs.lengths import PromptLengths
from portal.jobs.quotas import Quota
from portal.tenants.models import Tenant

LOOKED_AT = 200
DIGIT = re.compile(r"\d")

Row = dict[str, Any]


@dataclass(frozen=True)
class Check:
    """One finding; ``blocks`` says that a job must not start like this."""

    blocks: bool
    field: str
    """Dotted, as in the API; empty where no single field is to blame."""
    message: str
    hint: str = ""


def check_launch(
    *,
    tenant: Tenant,
    spec: JobSpec,
    dataset_version: DatasetVersion | None,
    lengths: PromptLengths | None,
    quotas: list[Quota],
) -> list[Check]:
    """Blocking findings first."""
    rows = preview_rows(tenant, dataset_version.pk, limit=LOOKED_AT) if dataset_version else []
    found = [
        *_quota_checks(quotas),
        *_length_checks(spec, lengths),
        *_environment_checks(tenant, spec, rows),
        *_reward_checks(spec, rows),
        *_held_out_checks(spec),
    ]
    return sorted(found, key=lambda check: not check.blocks)


def _quota_checks(quotas: list[Quota]) -> Iterator[Check]:
    for quota in quotas:
        if quota.blocks:
            message = f"{quota.name}: {quota.used:,.0f} of {quota.limit:,.0f} are used, so this does not fit."
            yield Check(True, "", message, quota.hint)
        elif not quota.fits:
            left = quota.limit - quota.used
            message = (
                f"{quota.name}: about {quota.needed:,.0f} are expected, {left:,.0f} of {quota.limit:,.0f} are left."
            )
            yield Check(False, "", message, f"The job would be paused on the way. {quota.hint}")


def _length_checks(spec: JobSpec, lengths: PromptLengths | None) -> Iterator[Check]:
    room = spec.base_model.context_length - spec.sampling.max_tokens
    if lengths is None or not lengths.over(room):
        return
    about = "" if lengths.exact else "about "
    yield Check(
        lengths.exact,
        "sampling.max_tokens",
        f"The longest prompt (line {lengths.longest_line}) has {about}{lengths.longest} tokens; beside a completion of "
        f"{spec.sampling.max_tokens} the context of {spec.base_model.context_length} leaves {max(0, room)}.",
        "Allow shorter completions, shorten these prompts, or choose a base model with a longer context.",
    )


def _environment_checks(tenant: Tenant, spec: JobSpec, rows: list[Row]) -> Iterator[Check]:
    environment = spec.environment
    for fault in environment_faults(tenant, environment):
        yield Check(True, fault.field, fault.message)
    if isinstance(environment, ReasoningGym) and (problem := suggest_task(environment.dataset)):
        yield Check(True, "environment.dataset", problem)
    if isinstance(environment, Tools) and "search" in environment.tools and not environment.documents_sha256:
        having = sum(bool(row["metadata"].get("documents")) for row in rows)
        if not having:
            hint = "Choose uploaded documents, or give each row a list 'documents' in its metadata."
            yield Check(True, "environment.documents_sha256", "There is nothing to search: no documents.", hint)
        elif having < len(rows):
            message = f"{len(rows) - having} of the first {len(rows)} rows bring no documents to search."
            yield Check(False, "environment.documents_sha256", message, "Choose uploaded documents for all rows.")
    if isinstance(environment, HttpEnvironment) and environment.token_name and environment.url.startswith("http:"):
        message = "The token would be sent unencrypted, which the engine refuses unless the operator allows it."
        yield Check(False, "environment.url", message, "Use an https address.")


def _held_out_checks(spec: JobSpec) -> Iterator[Check]:
    if not spec.held_out_rows:
        message = "There are no held-out rows, so the job cannot measure what it has learnt."
        yield Check(False, "dataset_version", message, "Upload the dataset with a part held out.")


def _reward_checks(spec: JobSpec, rows: list[Row]) -> Iterator[Check]:
    grader = spec.reward.grader
    if not isinstance(grader, Mix):
        yield from (Check(*problem) for problem in _grader_problems(grader, spec, rows))
        return
    problems = {part.name: list(_grader_problems(part.grader, spec, rows)) for part in grader.parts}
    hopeless = [any(blocks for blocks, *_ in found) for found in problems.values()]
    for name, found in problems.items():
        for blocks, field, message, hint in found:
            yield Check(blocks and all(hopeless), field, f"Part {name} of the reward: {message}", hint)


Problem = tuple[bool, str, str, str]


def _grader_problems(grader: SimpleGrader, spec: JobSpec, rows: list[Row]) -> Iterator[Problem]:
    """Why a grader cannot tell good completions of these rows from bad ones."""
    if isinstance(grader, EnvironmentReward):
        yield from _part_problems(grader, spec)
    elif isinstance(grader, Brevity):
        message = "It scores shortness alone, so the model learns to say nothing."
        yield False, "reward_version", message, "Put it into a mix with a grader of the answer."
    if not rows:
        return
    if isinstance(grader, Numeric):
        yield from _lacking(rows, "a number", lambda answer: bool(DIGIT.search(answer)), "exact_match or maths")
    elif isinstance(grader, Maths | ExactMatch) or (isinstance(grader, Regex) and grader.group_equals_answer):
        yield from _lacking(rows, "an answer", lambda answer: bool(answer.strip()), "one that needs no answer")


def _lacking(rows: list[Row], what: str, has: Any, instead: str) -> Iterator[Problem]:
    lacking = sum(not has(row["answer"]) for row in rows)
    if lacking == len(rows):
        message = f"None of the first {len(rows)} rows has {what} to compare with: every completion would score 0."
        yield True, "reward_version", message, f"Choose another grader ({instead}), or a dataset with such answers."
    elif lacking:
        message = f"{lacking} of the first {len(rows)} rows have no answer with {what}; they always score 0."
        if what == "an answer":
            message = f"{lacking} of the first {len(rows)} rows have no answer; they always score 0."
        yield False, "reward_version", message, "Leave these rows out of the dataset."


def _part_problems(grader: EnvironmentReward, spec: JobSpec) -> Iterator[Problem]:
    given = {Tools: {"tool_calls", "malformed_calls", "turns"}, OpenEnv: {"reward", "turns"}}.get(
        type(spec.environment)
    )
    if given is not None and grader.part not in given:
        message = f"The environment {spec.environment.type} gives no part {grader.part!r}: every episode would score 0."
        yield True, "reward_version", message, f"It gives {', '.join(sorted(given))}."
