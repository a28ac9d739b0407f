"""Settings of sampling, training, adapter, evaluation, and limits."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from engine.spec.contract import Contract


class SamplingSettings(Contract):
    """How completions are drawn in training.

    There is no top-p, top-k or penalty on purpose: truncating the distribution biases the importance ratio
    (the sampled policy would no longer be the trained one).
    """

    temperature: float = Field(default=1.0, gt=0, le=2)
    max_tokens: int = Field(default=64, ge=1, le=131_072)
    """Longest completion, in tokens, the end-of-turn token included."""


Algorithm = Literal["grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo", "reinforce_pp", "reinforce_pp_baseline"]
"""How a batch becomes an update; each is a module of ``engine.training.losses`` that names its paper."""

_TOKEN_CLIPPED = ("grpo", "dr_grpo", "dapo", "rloo", "reinforce_pp", "reinforce_pp_baseline")
USED_BY: dict[str, tuple[str, ...]] = {
    "clip_low": _TOKEN_CLIPPED,
    "clip_high": _TOKEN_CLIPPED,
    "sequence_clip_low": ("gspo",),
    "sequence_clip_high": ("gspo",),
    "ratio_cap": ("cispo",),
}
"""Settings that only some algorithms read. With another one they must stay at their defaults."""


class TrainingSettings(Contract):
    """How an adapter is trained: the algorithm, its optimizer, and how far it may move.

    A setting without effect under the others is refused where it is not at its default.
    """

    algorithm: Algorithm = "grpo"
    steps: int = Field(default=20, ge=1, le=100_000)
    """Steps; each commits one adapter version."""
    prompts_per_step: int = Field(default=8, ge=1, le=4096)
    group_size: int = Field(default=8, ge=2, le=256)
    """Episodes that answer one prompt; advantages are relative to their mean."""
    max_staleness: int = Field(default=0, ge=0, le=16)
    """A batch may be drawn by a version up to so many steps older than the one it trains. 0 is strictly on-policy;
    1 and more draw the next batches while one is trained, with importance correction."""
    epochs: int = Field(default=1, ge=1, le=16)
    """Passes over a batch. From the second update of a batch on, clipping bounds how far the policy moves."""
    minibatches: int = Field(default=1, ge=1, le=64)
    """Optimizer updates in one pass, each on its share of the batch's groups; at most ``prompts_per_step``."""
    learning_rate: float = Field(default=2e-4, gt=0, le=1)
    warmup_steps: int = Field(default=0, ge=0)
    """Steps over which the learning rate rises linearly from 0."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate goes on after the warm-up: as it is, or down to 0, reached just after the last step."""
    weight_decay: float = Field(default=0.0, ge=0, le=1)
    adam_beta1: float = Field(default=0.9, ge=0, lt=1)
    """AdamW's decay of the mean gradient."""
    adam_beta2: float = Field(default=0.999, ge=0, lt=1)
    """AdamW's decay of the mean squared gradient."""
    max_grad_norm: float = Field(default=1.0, gt=0)

    clip_low: float = Field(default=0.2, gt=0, lt=1)
    """The policy ratio counts no lower than 1 - clip_low where that would raise the objective. Not with gspo, cispo."""
    clip_high: float = Field(default=0.28, gt=0)
    """The policy ratio counts no higher than 1 + clip_high where that would raise the objective. Likewise."""
    sequence_clip_low: float = Field(default=3e-4, gt=0, lt=1)
    """As ``clip_low``, for the ratio of a whole episode, which moves far less. Only with gspo."""
    sequence_clip_high: float = Field(default=4e-4, gt=0)
    """As ``clip_high``, for the ratio of a whole episode. Only with gspo."""
    ratio_cap: float = Field(default=5.0, ge=1)
    """The policy ratio weighs a token by no more than this; no token loses its gradient. Only with cispo."""

    importance: Literal["truncate", "mask"] = "truncate"
    """What is done with a token whose trainer-to-sampler importance weight is out of bounds: ``truncate`` lets it count
    with ``importance_cap``; ``mask`` leaves it out."""
    importance_cap: float = Field(default=2.0, ge=1)
    """Upper bound of the trainer-to-sampler importance weight of a token."""
    importance_floor: float = Field(default=0.0, ge=0, lt=1)
    """Lower bound of that weight, for ``mask`` only: a token below it is left out."""

    kl_coefficient: float = Field(default=0.0, ge=0, le=10)
    """Weight of the KL divergence from the base model in the loss; with 0 the base is not even computed."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """How the divergence is estimated from a sampled token (http://joschu.net/blog/kl-approx.html); k1 counts as a
    cost in the reward, since the gradient of k1 itself is 0 in the mean. Only with ``kl_coefficient``."""
    entropy_coefficient: float = Field(default=0.0, ge=0, le=1)
    """Weight of the policy's entropy, as a bonus, in the loss."""

    overlong_buffer: int | None = Field(default=None, ge=0)
    """Soft punishment of length (DAPO): over the last so many tokens before ``sampling.max_tokens`` up to 1 is taken
    from the reward, linearly. 0: none. By default a fifth of ``max_tokens`` for dapo and none for the others."""
    max_sampling_rounds: int | None = Field(default=None, ge=1, le=64)
    """Dynamic sampling (DAPO): groups that teach nothing are replaced by those of further prompts, in at most so many
    rounds of rollout a step. 1: no replacement. By default 3 for dapo and 1 for the others."""

    @property
    def sampling_rounds(self) -> int:
        """``max_sampling_rounds`` or the algorithm's own."""
        return self.max_sampling_rounds or (3 if self.algorithm == "dapo" else 1)

    def overlong_tokens(self, max_tokens: int) -> int:
        """``overlong_buffer`` or the algorithm's own, for completions of at most ``max_tokens``."""
        if self.overlong_buffer is not None:
            return self.overlong_buffer
        return max_tokens // 5 if self.algorithm == "dapo" else 0

    @model_validator(mode="after")
    def _every_setting_has_effect(self) -> TrainingSettings:
        for name, algorithms in USED_BY.items():
            if self.algorithm not in algorithms and self._is_set(name):
                raise ValueError(
                    f"{name} has no effect with algorithm {self.algorithm}: leave it out, "
                    f"or choose one of {', '.join(algorithms)}"
                )
        if self.importance != "mask" and self._is_set("importance_floor"):
            raise ValueError("importance_floor has no effect unless importance is 'mask'")
        if self.kl_coefficient == 0 and self._is_set("kl_estimator"):
            raise ValueError("kl_estimator has no effect while kl_coefficient is 0")
        if self.algorithm == "reinforce_pp" and self.sampling_rounds > 1:
            raise ValueError(
                "max_sampling_rounds has no effect with algorithm reinforce_pp, which learns from groups whose rewards "
                "are all equal too; reinforce_pp_baseline does not"
            )
        return self

    @model_validator(mode="after")
    def _amounts_fit(self) -> TrainingSettings:
        if self.minibatches > self.prompts_per_step:
            raise ValueError(
                f"minibatches {self.minibatches} is more than the {self.prompts_per_step} groups of a batch: "
                "lower it or raise prompts_per_step"
            )
        if self.schedule != "constant" and self.warmup_steps >= self.steps:
            raise ValueError(
                f"warmup_steps {self.warmup_steps} leaves none of the {self.steps} steps for schedule {self.schedule}"
            )
        return self

    def _is_set(self, name: str) -> bool:
        return bool(getattr(self, name) != type(self).model_fields[name].default)


TargetModule = Literal[
    "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "qkv_proj", "gate_up_proj"
]
"""Linear layers of the blocks, by the last part of their names; a base model has some of them."""


class LoraSettings(Contract):
    """Low-rank adapter (arXiv 2106.09685) on linear layers of the blocks."""

    rank: int = Field(default=16, ge=1, le=512)
    alpha: float = Field(default=32, gt=0, le=4096)
    """Scale: alpha / rank, or alpha / sqrt(rank) with ``use_rslora``."""
    use_rslora: bool = False
    target_modules: list[TargetModule] = Field(default_factory=list)
    """The layers that carry an adapter; empty means all of the base model's."""

    @field_validator("target_modules")
    @classmethod
    def _different(cls, modules: list[TargetModule]) -> list[TargetModule]:
        if len(set(modules)) != len(modules):
            raise ValueError("a target module is named twice")
        return modules


class EvaluationSettings(Contract):
    """Greedy evaluation on held-out rows. The base is evaluated before the first step, the adapter after the last."""

    every_steps: int = Field(default=0, ge=0)
    """Evaluate after every n-th step too; 0 means only at the start and the end."""
    max_rows: int = Field(default=64, ge=1, le=100_000)
    """At most so many held-out rows, the first ones of the file."""
    patience: int = Field(default=0, ge=0, le=10_000)
    """Early stopping: end the job after so many evaluations in a row without improvement; 0 means never."""
    min_delta: float = Field(default=0.0, ge=0, le=1)
    """What counts as improvement: accuracy up by at least this or, where accuracy did not fall, the mean reward."""
    result: Literal["best", "last"] = "best"
    """The version that becomes the job's result: the one that did best on the held-out rows, or the last one, which
    it is too where none was evaluated."""

    @model_validator(mode="after")
    def _has_something_to_wait_for(self) -> EvaluationSettings:
        if self.patience and not self.every_steps:
            raise ValueError(
                "patience needs evaluations during training: set every_steps, or patience to 0 for no early stopping"
            )
        return self


class Limits(Contract):
    """What stops a job; the adapter committed so far is kept."""

    max_wall_seconds: int = Field(default=24 * 3600, ge=1)
    """Wall-clock time since the job first ran."""
    max_tokens_sampled: int | None = Field(default=None, ge=1)
    """Tokens sampled for training and evaluation."""
    max_tokens_trained: int | None = Field(default=None, ge=1)
    max_accelerator_seconds: float | None = Field(default=None, gt=0)
    """Seconds of the trainer, and of rollout workers, whose time is split between the requests they serve at once."""
    max_batches_without_signal: int = Field(default=5, ge=1, le=1000)
    """So many batches in a row in which no group's rewards vary end the job: there is nothing to learn from."""
