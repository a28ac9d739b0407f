"""What the evaluations of one job say together: its best version, and whether to stop early. Pure, no I/O.

Invariants: the best version is the one with the highest held-out accuracy, of equals the one with the higher mean
reward, of equals the later one, in whatever order evaluations arrive; recording an evaluation again changes nothing;
a history restored from its state goes on as if it had never been away.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from engine.spec import EvaluationSettings

ROUNDING = 1e-9
"""0.3 - 0.2 is not quite 0.1: differences are compared with this slack."""


class EvaluationRecord(BaseModel):
    """One evaluation."""

    version: int | None
    """None: the base."""
    step: int
    accuracy: float
    reward_mean: float

    @property
    def rank(self) -> tuple[float, float, int]:
        """Ascending with quality."""
        return self.accuracy, self.reward_mean, self.step


class _State(BaseModel):
    best: EvaluationRecord | None = None
    base: EvaluationRecord | None = None
    last: EvaluationRecord | None = None
    """Of the adapter version of the latest step."""
    reference: EvaluationRecord | None = None
    """The last evaluation that improved; the first one, which is the base's as a rule, to begin with."""
    waited: int = 0
    """Evaluations since, without improvement."""
    last_step: int = -1


class EvaluationHistory:
    """Small and serialisable: its size does not grow with the number of evaluations."""

    def __init__(self, settings: EvaluationSettings) -> None:
        self._settings = settings
        self._state = _State()

    def record(self, version: int | None, step: int, accuracy: float, reward_mean: float) -> bool:
        """Note an evaluation; True where its adapter version is now the best one.

        ``version`` None is the base: a mark to beat for early stopping, never the best version. An evaluation that
        arrives after one of a later step counts for the best version and the mark, but not as one waited for.
        """
        state = self._state
        new = EvaluationRecord(version=version, step=step, accuracy=accuracy, reward_mean=reward_mean)
        in_order = step > state.last_step
        state.last_step = max(state.last_step, step)
        if state.reference is None:
            state.reference = new
        elif self._improves(new, state.reference):
            state.reference = new
            state.waited = 0 if in_order else state.waited
        else:
            state.waited += in_order
        if version is None:
            state.base = new
        elif state.last is None or step >= state.last.step:
            state.last = new
        if version is None or (state.best is not None and new.rank <= state.best.rank):
            return False
        state.best = new
        return True

    @property
    def best(self) -> EvaluationRecord | None:
        """The best adapter version so far; None before one was evaluated."""
        return self._state.best

    @property
    def base(self) -> EvaluationRecord | None:
        """The base's; None before it was evaluated."""
        return self._state.base

    @property
    def last(self) -> EvaluationRecord | None:
        """That of the latest adapter version evaluated."""
        return self._state.last

    @property
    def should_stop(self) -> str:
        """Why training should end now, in words for the tenant and without a full stop; empty to go on."""
        state, settings = self._state, self._settings
        if not settings.patience or state.waited < settings.patience or state.reference is None:
            return ""
        mark, whose = state.reference, "the base" if state.reference.version is None else f"step {state.reference.step}"
        margin = f" by at least {settings.min_delta:g}" if settings.min_delta else ""
        return (
            f"The last {state.waited} evaluations did not improve{margin} on {whose} "
            f"(held-out accuracy {mark.accuracy:.1%}, mean reward {mark.reward_mean:.3f})"
        )

    def state(self) -> dict[str, Any]:
        """Everything known, as JSON."""
        return self._state.model_dump(mode="json")

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what ``state`` gave; from ``{}``, begin anew."""
        self._state = _State.model_validate(state)

    def _improves(self, new: EvaluationRecord, mark: EvaluationRecord) -> bool:
        def risen(difference: float) -> bool:
            return difference > ROUNDING and difference >= self._settings.min_delta - ROUNDING

        accuracy = new.accuracy - mark.accuracy
        return risen(accuracy) or (accuracy >= -ROUNDING and risen(new.reward_mean - mark.reward_mean))
