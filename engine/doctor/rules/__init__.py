"""The rules, one small module each. A rule only reads; thresholds are constants with their reasons."""

from engine.doctor.rule import Rule
from engine.doctor.rules import (
    all_truncated,
    entropy_collapse,
    identical_completions,
    kl_blow_up,
    lengths_running_away,
    no_learning_signal,
    ratio_blow_up,
    reward_errors,
    reward_hacking,
    sampler_trainer_gap,
    stalled_environment,
)

STEP_RULES: tuple[Rule, ...] = (
    reward_errors.RULE,
    no_learning_signal.RULE,
    all_truncated.RULE,
    identical_completions.RULE,
    entropy_collapse.RULE,
    kl_blow_up.RULE,
    ratio_blow_up.RULE,
    sampler_trainer_gap.RULE,
    lengths_running_away.RULE,
    stalled_environment.RULE,
)
"""Read after every batch; those that explain others come first."""
EVALUATION_RULES: tuple[Rule, ...] = (reward_hacking.RULE,)
"""Read after every evaluation."""
