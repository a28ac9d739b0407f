"""Feeds the rules and says what they find once. See the package's docstring for the invariants."""

from __future__ import annotations

from typing import Any

from engine.doctor.history import History
from engine.doctor.rule import Reading, Rule
from engine.doctor.rules import EVALUATION_RULES, STEP_RULES
from engine.events import Notice
from engine.spec import JobSpec
from engine.types import Group


class Doctor:
    """One job's. Give it every batch and every evaluation, report its notices, and keep its state with them."""

    def __init__(self, spec: JobSpec) -> None:
        self._spec = spec
        self._history = History()
        self._levels: dict[str, int] = {}
        """By code, the level that was said last; only of findings that hold."""
        self._committed = 0
        self._evaluated = -1

    def observe_step(self, step: int, metrics: dict[str, float], groups: list[Group]) -> list[Notice]:
        """Look at one batch: that of a committed step, or one that was dropped for want of signal.

        Args:
            step: the step the batch made or was drawn for. A step that was committed before is ignored.
            metrics: as in ``engine.events.StepCommitted``, whichever are known.
            groups: may be empty where they are lost (a step reported after a restart).
        """
        if step <= self._committed:
            return []
        if "tokens_trained" in metrics:
            self._committed = step
        self._history.add_batch(metrics, groups, self._spec)
        return self._look(STEP_RULES)

    def observe_evaluation(self, step: int, accuracy: float, reward_mean: float) -> list[Notice]:
        """Look at an evaluation of the base (step 0) or of the version of a step; one older than another is ignored."""
        if step <= self._evaluated:
            return []
        self._evaluated = step
        self._history.add_evaluation(step, accuracy, reward_mean)
        return self._look(EVALUATION_RULES)

    def state(self) -> dict[str, Any]:
        """Everything known, as JSON; a few kilobytes however long the job runs."""
        return {
            "history": self._history.model_dump(mode="json", exclude_none=True),
            "levels": dict(self._levels),
            "committed": self._committed,
            "evaluated": self._evaluated,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what ``state`` gave; from ``{}``, begin anew."""
        self._history = History.model_validate(state.get("history", {}))
        self._levels = dict(state.get("levels", {}))
        self._committed = state.get("committed", 0)
        self._evaluated = state.get("evaluated", -1)

    def _look(self, rules: tuple[Rule, ...]) -> list[Notice]:
        notices = []
        for rule in rules:
            reading = rule.read(self._history, self._spec)
            if reading is not None and (notice := self._judge(rule, reading)):
                notices.append(notice)
        return notices

    def _judge(self, rule: Rule, reading: Reading) -> Notice | None:
        said, now = self._levels.get(rule.code, 0), rule.level_of(reading.value)
        if now > said:
            self._levels[rule.code] = now
            worse = "It got worse. " if said else ""
            return Notice(level=reading.level, code=rule.code, message=worse + reading.message, hint=reading.hint)
        if said and reading.value < rule.ends:
            del self._levels[rule.code]
            return Notice(level="info", code=rule.code, message=f"It is over. {reading.message}", over=True)
        return None
