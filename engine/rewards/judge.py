"""A model as the judge: the job's base model reads a prompt and its reply is read as the score.

Invariants: the judge is the base without an adapter, drawn through the same rollout as the job's own samples and for
the same job, so it waits in the job's share and is metered to it; its reply is bounded by ``max_tokens``. At
temperature 0 a sample gets the same score every time, and above it too, as long as the rollout's numerics are: the
seed follows from the prompt.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Awaitable, Callable

from engine.chat import ChatRenderer
from engine.data import DatasetError
from engine.rewards.graders.labels import find_labels
from engine.rewards.graders.source import GraderError, Source, shown
from engine.rewards.numbers import last_number
from engine.spec import Judge, Message
from engine.spec.templates import MissingValue
from engine.types import BASE, Completion, RolloutRequest, Sample, Score

Rollout = Callable[[RolloutRequest], Awaitable[list[Completion]]]
"""Draws completions. A coroutine function, or anything whose result can be awaited, such as a Ray actor's method."""


async def judge(
    grader: Judge, sample: Sample, rollout: Rollout, renderer: ChatRenderer, *, job_id: str, context_length: int
) -> Score:
    """Have the base model judge one sample.

    Args:
        job_id: pays for it.
        context_length: of the base model, in tokens.

    Returns:
        The score; ``error`` where the prompt cannot be made or the reply cannot be read.

    Raises:
        ValueError: the rollout answered with something else than one completion of the base.
        Whatever the rollout raises.
    """
    start = time.perf_counter()
    try:
        request = _request(grader, sample, renderer, job_id, context_length)
    except (GraderError, MissingValue, DatasetError) as error:
        return Score(0.0, reason=str(error), error=True, error_kind="grader", seconds=time.perf_counter() - start)
    completions = await rollout(request)
    if len(completions) != 1 or completions[0].policy != BASE.name:
        raise ValueError("asked the rollout for one completion of the base, got something else")
    (reply,) = completions
    seconds, tokens = time.perf_counter() - start, len(reply.token_ids)
    said = f"the judge said {shown(reply.text.strip())}"
    try:
        total = read_reply(grader, reply.text, cut=reply.finish_reason == "length")
    except GraderError as error:
        reason = f"{said}: {error}"
        return Score(
            0.0,
            reason=reason,
            error=True,
            error_kind="grader",
            seconds=seconds,
            details=reply.text,
            judge_tokens=tokens,
        )
    return Score(total, reason=said, seconds=seconds, judge_tokens=tokens)


def read_reply(grader: Judge, text: str, *, cut: bool = False) -> float:
    """The score, in [0, 1], that a reply states.

    Args:
        cut: the reply ended at the token limit.

    Raises:
        GraderError: it states none.
    """
    if grader.labels:
        labels = list(grader.labels)
        mentions = find_labels(tuple((label,) for label in labels), text, ignore_case=True)
        if not mentions:
            raise GraderError(f"that is none of {', '.join(labels)}")
        return grader.labels[labels[mentions[-1]]]
    if cut and text.rstrip()[-1:].isdigit():
        raise GraderError(f"it was cut off at {grader.max_tokens} tokens, within a number perhaps")
    number = last_number(_without_scale(text, grader.high))
    if number is None:
        raise GraderError("that has no number in it")
    value = float(number.value)
    if not grader.low <= value <= grader.high:
        raise GraderError(f"that is not from {grader.low:g} to {grader.high:g}")
    return (value - grader.low) / (grader.high - grader.low)


def _request(grader: Judge, sample: Sample, renderer: ChatRenderer, job_id: str, context_length: int) -> RolloutRequest:
    source = Source(sample)
    prompt = source.text(grader.prompt)
    ids = renderer.prompt_ids([Message(role="user", content=prompt)], source.text(grader.system_prompt))
    if len(ids) + grader.max_tokens > context_length:
        raise GraderError(
            f"the judge's prompt has {len(ids)} tokens and leaves no room for a reply of {grader.max_tokens} in the "
            f"context of {context_length}"
        )
    digest = hashlib.sha256(prompt.encode(errors="replace")).digest()
    return RolloutRequest(
        policy=BASE,
        prompt_ids=ids,
        n=1,
        max_tokens=grader.max_tokens,
        temperature=grader.temperature,
        seed=int.from_bytes(digest[:4]) & 0x7FFFFFFF,
        job_id=job_id,
    )


def _without_scale(text: str, high: float) -> str:
    """``8/10`` and ``8 out of 10`` as ``8``, where 10 is the highest score: no fraction is meant."""
    return re.sub(rf"(?<=[0-9])\s*(?:/|out of)\s*{re.escape(f'{high:g}')}(?:\.0+)?(?![0-9]|\.[0-9])", "", text)
