"""Writes of reward trials: start, cancel, take in what the engine reports, send again, give up, forget.

Invariants: a trial is asked for until the engine's last report is stored, and then never changes; every trial ends,
at the latest ``GIVE_UP_AFTER`` after the engine was last heard of or ``LONGEST`` after it began.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Q
from django.utils import timezone
from kombu.exceptions import OperationalError
from pydantic import ValidationError

from engine.spec import ENGINE_QUEUE, Judge, RewardSpec, leaf_graders
from engine.spec.trial import (
    CANCEL_TRIAL,
    FINISHED_TRIALS,
    MAX_TRIAL_ROWS,
    TRY_REWARD,
    RewardTrialSpec,
    TrialReport,
)
from portal.audit.services import record_change
from portal.base_models.selectors import find_base_model
from portal.celery import app
from portal.datasets.models import DatasetVersion
from portal.errors import FieldError, InvalidInput, Limit, QuotaExceeded, field_errors
from portal.json_values import make_storable, unstorable_fields
from portal.rewards.models import RewardTrial, RewardVersion, TrialState
from portal.rewards.rows import parse_row, read_row, sample_rows
from portal.rewards.selectors import get_reward_trial
from portal.rewards.services import check_reward_spec
from portal.tenants.models import Tenant
from portal.tenants.services import require_writer
from portal.usage.enforcement import enforce_quotas
from portal.usage.limits import require_trial
from portal.usage.recording import record_trial_usage

logger = logging.getLogger(__name__)

MAX_RUNNING = 3
"""Trials of one tenant at once."""
KEPT = timedelta(days=7)
RESEND_AFTER = timedelta(seconds=30)
GIVE_UP_AFTER = timedelta(minutes=3)
LONGEST = timedelta(minutes=30)
NO_ENGINE = (
    "The engine did not answer for {minutes:g} minutes, so the test was given up. It may be down or starting: try "
    "again later, or ask the operator."
)


@dataclass(frozen=True)
class TrialRows:
    """Which rows are tried: one that was sent, one line of a dataset, or several of its lines drawn by chance."""

    row: dict[str, Any] | None = None
    """As in an upload: ``prompt`` or ``messages``, ``answer``, anything else."""
    dataset_version: DatasetVersion | None = None
    line: int | None = None
    """Of the dataset, counted from 1."""
    count: int = 20
    """Rows drawn where no line is named; the same for the same seed."""
    completions: Sequence[str] = field(default_factory=tuple)
    """Scored instead of fresh samples; of a single row only."""


@dataclass(frozen=True)
class Sampling:
    """How fresh completions are drawn; see ``engine.spec.trial.TrialSampling``."""

    base_model_id: str = ""
    samples: int = 4
    max_tokens: int = 128
    temperature: float = 1.0
    seed: int = 0
    system_prompt: str = ""


def start_reward_trial(
    *,
    tenant: Tenant,
    user: User,
    rows: TrialRows,
    sampling: Sampling,
    reward_version: RewardVersion | None = None,
    spec: dict[str, Any] | None = None,
) -> RewardTrial:
    """Test a saved version, or a reward that is not saved, on given completions or fresh samples of a base model.

    Raises InvalidInput with a field error for each fault, QuotaExceeded where too many of the tenant's trials run or
    were begun today.
    """
    require_writer(tenant=tenant, user=user)
    reward = reward_version.spec if reward_version else check_reward_spec(spec or {})
    trial = RewardTrial(
        tenant=tenant, created_by_id=user.pk, reward_version=reward_version, expires_at=timezone.now() + KEPT
    )
    trial.spec = _trial_spec(trial.pk, tenant, reward, rows, sampling)
    trial.reason = "Waits for the engine."
    with transaction.atomic():
        # Two requests must not share the last place.
        tenant = Tenant.objects.select_for_update().get(pk=tenant.pk)
        running = RewardTrial.objects.filter(tenant=tenant).exclude(state__in=FINISHED_TRIALS).count()
        if running >= MAX_RUNNING:
            raise QuotaExceeded(
                f"{running} reward tests are running; more than {MAX_RUNNING} at once are not possible.",
                hint="Wait for one to end, or cancel it.",
                limit=Limit("running_reward_trials", used=running, limit=MAX_RUNNING),
            )
        require_trial(tenant=tenant)
        trial.save()
        record_change(
            tenant=tenant,
            user=user,
            action="reward.tried",
            target=trial,
            label=str(reward_version or "an unsaved reward"),
        )
        transaction.on_commit(lambda: _send(trial))
    return trial


def cancel_reward_trial(*, tenant: Tenant, user: User, trial_id: uuid.UUID) -> RewardTrial:
    """Cancel a trial; one that has ended stays as it is. Raises Http404 for what the tenant does not have."""
    trial = get_reward_trial(tenant, trial_id)
    require_writer(tenant=tenant, user=user)
    # It ends here at once: what the engine says after is ignored.
    ended = _unfinished().filter(pk=trial.pk)
    changes = {"state": TrialState.CANCELLED, "reason": "Cancelled on request.", "finished_at": timezone.now()}
    with transaction.atomic():
        if ended.update(cancel_wanted=True, **changes):
            _record_usage(trial.pk)
            transaction.on_commit(lambda: _hand_over(CANCEL_TRIAL, trial.pk.hex))
    return get_reward_trial(tenant, trial_id)


def take_in_report(*, report: TrialReport) -> None:
    """Store what the engine reports; older reports, and those of trials that have ended or are gone, change nothing."""
    now = timezone.now()
    ended = report.state in FINISHED_TRIALS
    with transaction.atomic():
        stored = _unfinished().filter(pk=uuid.UUID(report.trial_id), sequence__lt=report.sequence)
        changed = stored.update(
            sequence=report.sequence,
            heard_at=now,
            state=report.state,
            reason=make_storable(report.reason),
            done=report.done,
            scores=make_storable([[score.model_dump() for score in group] for group in report.scores]),
            sampled_tokens=report.sampled_tokens,
            accelerator_seconds=report.accelerator_seconds,
            finished_at=now if ended else None,
        )
        if changed and ended:
            _record_usage(uuid.UUID(report.trial_id))


def _record_usage(trial_id: uuid.UUID) -> None:
    """Count what a trial that has just ended spent, as far as the engine has said; once, since it ends once."""
    trial = RewardTrial.objects.select_related("tenant", "created_by").get(pk=trial_id)
    record_trial_usage(trial=trial)
    transaction.on_commit(lambda: enforce_quotas(tenant_ids=[trial.tenant_id]))


def sweep_reward_trials() -> None:
    """Ask again for trials the engine has not finished, end those it was not heard of, delete those that expired."""
    now = timezone.now()
    RewardTrial.objects.filter(expires_at__lte=now).delete()
    silent = Q(heard_at__lte=now - GIVE_UP_AFTER) | Q(heard_at=None, created_at__lte=now - GIVE_UP_AFTER)
    _give_up(_unfinished().filter(silent), NO_ENGINE.format(minutes=GIVE_UP_AFTER.total_seconds() / 60))
    too_long = _unfinished().filter(created_at__lte=now - LONGEST)
    _give_up(too_long, "The test took longer than half an hour and was given up.")
    due = now - RESEND_AFTER
    for trial in _unfinished().filter(Q(sent_at=None) | Q(sent_at__lte=due)).order_by("created_at")[:50]:
        _send(trial)


def _give_up(trials: Any, reason: str) -> None:
    for trial_id in list(trials.values_list("pk", flat=True)):
        with transaction.atomic():
            ending = _unfinished().filter(pk=trial_id)
            if ending.update(state=TrialState.FAILED, finished_at=timezone.now(), reason=reason):
                _record_usage(trial_id)


def _unfinished() -> Any:
    return RewardTrial.objects.exclude(state__in=FINISHED_TRIALS)


def _send(trial: RewardTrial) -> None:
    until = time.time() + GIVE_UP_AFTER.total_seconds()
    if _hand_over(TRY_REWARD, {**trial.spec, "ask_until": until}):
        RewardTrial.objects.filter(pk=trial.pk).update(sent_at=timezone.now())


def _hand_over(name: str, argument: Any) -> bool:
    """Hand a command to the broker; False where it cannot be reached (the sweep comes back to it)."""
    try:
        app.send_task(name, args=[argument], queue=ENGINE_QUEUE, retry=False)
    except OperationalError as error:
        logger.warning("The broker cannot be reached, %s will be sent again: %s", name, error)
        return False
    return True


def _trial_spec(
    trial_id: uuid.UUID, tenant: Tenant, reward: dict[str, Any], rows: TrialRows, sampling: Sampling
) -> dict[str, Any]:
    """``RewardTrialSpec`` as JSON; raises InvalidInput in the sender's field names."""
    errors = _row_errors(rows) + unstorable_fields({"completions": list(rows.completions)})
    judged = any(isinstance(leaf, Judge) for leaf in leaf_graders(RewardSpec.model_validate(reward).grader))
    base_model = find_base_model(sampling.base_model_id) if judged or not rows.completions else None
    if base_model is None and (judged or not rows.completions):
        missing = "is required: it is the judge" if judged else "is required where no completion is given"
        words = "is not offered" if sampling.base_model_id else missing
        errors.append(FieldError("base_model", words))
    if errors:
        raise InvalidInput("The test was not started.", fields=errors)
    drawn = _read_rows(rows, sampling.seed)
    data = {
        "trial_id": trial_id.hex,
        "tenant_id": str(tenant.pk),
        "weight": tenant.weight,
        "reward": reward,
        "cases": [{"row": row, "number": number, "completions": list(rows.completions)} for number, row in drawn],
        "sampling": base_model
        and {
            "base_model": base_model.to_spec().model_dump(mode="json"),
            "samples": sampling.samples,
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "seed": sampling.seed,
            "system_prompt": sampling.system_prompt,
        },
    }
    try:
        return RewardTrialSpec.model_validate(data).model_dump(mode="json")
    except ValidationError as error:
        fields = [FieldError(item.field.removeprefix("sampling."), item.message) for item in field_errors(error, data)]
        fields = [FieldError("completions" if "completions" in f.field else f.field, f.message) for f in fields]
        raise InvalidInput("The test was not started.", fields=fields) from None


def _row_errors(rows: TrialRows) -> list[FieldError]:
    if (rows.row is None) == (rows.dataset_version is None):
        return [FieldError("row", "Give either a row or a dataset version to take rows from.")]
    if rows.dataset_version is None or rows.line is not None:
        return []
    if rows.completions:
        return [FieldError("completions", "A completion answers one row: name its line, or leave the completion out.")]
    if not 1 <= rows.count <= MAX_TRIAL_ROWS:
        return [FieldError("rows", f"must be between 1 and {MAX_TRIAL_ROWS}")]
    return []


def _read_rows(rows: TrialRows, seed: int) -> list[tuple[int | None, dict[str, Any]]]:
    if rows.dataset_version is None:
        return [(None, parse_row(rows.row or {}))]
    if rows.line is not None:
        return [read_row(rows.dataset_version, rows.line)]
    return list(sample_rows(rows.dataset_version, rows.count, seed))
