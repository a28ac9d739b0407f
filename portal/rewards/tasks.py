"""Celery tasks of the events worker; all idempotent."""

from __future__ import annotations

from typing import Any

from celery import shared_task

from engine.spec.trial import REWARD_TRIED, TrialReport
from portal.rewards import trial_services


@shared_task(name=REWARD_TRIED)
def reward_tried(report: dict[str, Any]) -> None:
    """How a reward trial stands; the last report has its scores."""
    trial_services.take_in_report(report=TrialReport.model_validate(report))


@shared_task(name="portal.sweep_reward_trials")
def sweep_reward_trials() -> None:
    """Ask again for trials that are not finished, end those that are lost, delete those that expired."""
    trial_services.sweep_reward_trials()
