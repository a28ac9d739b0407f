"""Training and LoRA settings: what has no effect is refused, and names what has."""

from __future__ import annotations

from typing import get_args

import pytest
from pydantic import ValidationError

from engine.rollout.adapter_files import TARGET_MODULES
from engine.spec import Algorithm, JobSpec, LoraSettings, TargetModule, TrainingSettings
from engine.training.losses import ALGORITHMS
from tests.engine.training.factory import make_spec


def test_every_algorithm_is_there():
    assert set(get_args(Algorithm)) == set(ALGORITHMS)
    for algorithm in ALGORITHMS:
        spec = make_spec(algorithm=algorithm)
        assert JobSpec.model_validate_json(spec.model_dump_json()) == spec


def test_an_adapter_may_target_what_rollouts_can_serve():
    assert list(get_args(TargetModule)) == TARGET_MODULES


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"algorithm": "gspo", "clip_high": 0.3}, "clip_high has no effect with algorithm gspo"),
        ({"algorithm": "cispo", "clip_low": 0.3}, "clip_low has no effect with algorithm cispo.*grpo, dr_grpo"),
        ({"sequence_clip_low": 1e-3}, "sequence_clip_low has no effect with algorithm grpo.*choose one of gspo"),
        ({"algorithm": "rloo", "ratio_cap": 3}, "ratio_cap has no effect"),
        ({"importance_floor": 0.5}, "unless importance is 'mask'"),
        ({"kl_estimator": "k1"}, "no effect while kl_coefficient is 0"),
        ({"algorithm": "reinforce_pp", "max_sampling_rounds": 3}, "max_sampling_rounds has no effect"),
        ({"minibatches": 9}, "more than the 8 groups"),
        ({"schedule": "linear", "warmup_steps": 20}, "leaves none of the 20 steps"),
        ({"epochs": 0}, "greater than or equal to 1"),
        ({"adam_beta2": 1.0}, "less than 1"),
        ({"algorithm": "ppo"}, "'grpo'"),
    ],
)
def test_refused(settings, message):
    with pytest.raises(ValidationError, match=message):
        TrainingSettings(**settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": "gspo", "sequence_clip_low": 1e-3},
        {"algorithm": "cispo", "ratio_cap": 3},
        {"importance": "mask", "importance_floor": 0.5},
        {"kl_coefficient": 0.1, "kl_estimator": "k1"},
        {"algorithm": "reinforce_pp_baseline", "max_sampling_rounds": 3},
        {"schedule": "linear", "warmup_steps": 19},
    ],
)
def test_accepted(settings):
    training = TrainingSettings(**settings)
    assert {name: getattr(training, name) for name in settings} == settings


def test_what_dapo_brings_along():
    assert (TrainingSettings().sampling_rounds, TrainingSettings().overlong_tokens(100)) == (1, 0)
    dapo = TrainingSettings(algorithm="dapo")
    assert (dapo.sampling_rounds, dapo.overlong_tokens(100)) == (3, 20)
    plain = TrainingSettings(algorithm="dapo", max_sampling_rounds=1, overlong_buffer=0)
    assert (plain.sampling_rounds, plain.overlong_tokens(100)) == (1, 0)


def test_an_overlong_buffer_fits_a_completion():
    assert make_spec(overlong_buffer=32)
    with pytest.raises(ValidationError, match="longer than a completion"):
        make_spec(overlong_buffer=33)


def test_target_modules():
    assert LoraSettings(target_modules=["q_proj", "down_proj"]).target_modules == ["q_proj", "down_proj"]
    with pytest.raises(ValidationError, match="named twice"):
        LoraSettings(target_modules=["q_proj", "q_proj"])
    with pytest.raises(ValidationError, match="'q_proj'"):
        LoraSettings(target_modules=["lm_head"])
