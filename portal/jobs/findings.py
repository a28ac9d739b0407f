"""What stands out in a job's course: the doctor's findings and the first rewards that failed.

Every function takes a job the caller has already found for its tenant, and reads no event above ``last_seq``.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from portal.jobs.models import Job, JobEvent
from portal.rollouts.models import Episode

MAX_NOTICES = 500
MAX_ERRORS = 5
OVER_WITH_THE_NEXT_STEP = {"batch_dropped"}
"""Codes of notices about one batch: the next committed step ends them, without a word of its own."""


@dataclass(frozen=True)
class Finding:
    """One thing the engine noticed, from when it was first said until it no longer held."""

    code: str
    level: str
    message: str
    """As said last while it held."""
    hint: str
    """What to try."""
    since: datetime
    until: datetime | None = None
    """None: it still holds, or did when the job ended."""
    over: str = ""
    """What was said when it no longer held."""
    times: int = 1


@dataclass(frozen=True)
class Findings:
    current: list[Finding]
    """Warnings first, then the newest first."""
    past: list[Finding]
    """Newest first."""


def find_findings(job: Job) -> Findings:
    """The notices of a job, said again and taken back, as findings with a beginning and an end."""
    events = JobEvent.objects.filter(job=job, seq__lte=job.last_seq)
    notices = list(events.filter(type="notice").order_by("-seq")[:MAX_NOTICES])[::-1]
    last_step = events.filter(type="step").order_by("seq").values_list("seq", "time").last()
    holding: dict[str, Finding] = {}
    seen_at: dict[str, int] = {}
    past: list[Finding] = []
    for event in notices:
        notice = event.payload
        code, before = notice["code"], holding.pop(notice["code"], None)
        if notice.get("over"):
            if before:
                past.append(_end(before, until=event.time, over=notice["message"]))
            continue
        seen_at[code] = event.seq
        holding[code] = Finding(
            code=code,
            level=notice["level"],
            message=notice["message"],
            hint=notice.get("hint", ""),
            since=before.since if before else event.time,
            times=before.times + 1 if before else 1,
        )
    for code in OVER_WITH_THE_NEXT_STEP & holding.keys():
        if last_step and last_step[0] > seen_at[code]:
            past.append(_end(holding.pop(code), until=last_step[1], over=""))
    newest_first = sorted(holding.values(), key=lambda finding: finding.since, reverse=True)
    current = sorted(newest_first, key=lambda finding: finding.level != "warning")
    return Findings(current, sorted(past, key=lambda finding: finding.since, reverse=True))


def _end(finding: Finding, *, until: datetime, over: str) -> Finding:
    return Finding(**{**vars(finding), "until": until, "over": over})


@dataclass(frozen=True)
class RewardError:
    """A reward that failed, in full."""

    step: int
    row: int
    kind: str
    reason: str
    details: str
    """Traceback or the like; may be empty."""
    console: str
    """What the reward printed; may be empty."""
    completion: str
    evaluation: bool = False
    """In an evaluation, of the version of ``step``."""
    group_seq: int | None = None
    """Of the group it belongs to, where it is known."""


def first_reward_errors(job: Job) -> list[RewardError]:
    """The first ones the engine reported in full; of jobs it reported none of, the first failed episodes."""
    events = JobEvent.objects.filter(job=job, seq__lte=job.last_seq, type="reward_error").order_by("seq")
    found = [_to_error(payload) for payload in events.values_list("payload", flat=True)[:MAX_ERRORS]]
    if found:
        return found
    episodes = Episode.objects.filter(group__job=job, group__errors__gt=0, error=True).select_related("group")
    return [
        RewardError(
            step=episode.group.step,
            row=episode.group.row,
            kind="",
            reason=episode.reason,
            details="",
            console="",
            completion=episode.completion,
            group_seq=episode.group.seq,
        )
        for episode in episodes.order_by("group__seq", "position")[:MAX_ERRORS]
    ]


def _to_error(payload: dict[str, Any]) -> RewardError:
    texts: dict[str, Any] = {
        name: payload.get(name) or "" for name in ("kind", "reason", "details", "console", "completion")
    }
    texts["kind"] = texts["kind"].replace("_", " ")
    return RewardError(step=payload["step"], row=payload["row"], evaluation=bool(payload.get("evaluation")), **texts)
