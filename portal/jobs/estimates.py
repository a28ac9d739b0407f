"""What a job would take, before it starts: tokens from the dataset's lengths, time from what the pool measured.

Invariant: nothing is guessed silently. Every figure that is not known is None, and ``basis`` says where each that is
comes from.
"""

from __future__ import annotations

import uuid
from dataclasses import asdict, dataclass
from typing import Any

from engine.spec import JobSpec, MultiTurn
from portal.adapters.models import AdapterVersion
from portal.base_models.selectors import find_base_model
from portal.datasets.models import DatasetVersion
from portal.jobs.checks import Check, check_launch
from portal.jobs.lengths import CHARACTERS_PER_TOKEN, PromptLengths, measure_prompts
from portal.jobs.quotas import Quota, quotas_after
from portal.jobs.rates import Rates, measure_rates, usual_completion_tokens
from portal.jobs.services import require_own
from portal.jobs.specs import build_spec
from portal.rewards.models import RewardVersion
from portal.tenants.models import Tenant
from portal.usage.models import QuotaKind

UNNAMED = "estimate"


@dataclass(frozen=True)
class Tokens:
    """Tokens of training; evaluations come on top."""

    prompt: int | None
    """Of all prompts, each counted once an episode."""
    sampled: int
    """Expected where ``completion_mean`` is known, else the most it can be."""
    sampled_at_most: int
    trained: int
    """As ``sampled``."""
    trained_at_most: int
    completion_mean: float | None
    """Of an earlier job of the tenant on the same dataset; None where there is none."""


@dataclass(frozen=True)
class Estimate:
    """What a job would take and what speaks against starting it."""

    spec: JobSpec
    episodes: int
    passes: float | None
    """How often each training row is drawn."""
    tokens: Tokens
    seconds: float | None
    accelerator_seconds: float | None
    wait_seconds: float | None
    quotas: list[Quota]
    checks: list[Check]
    basis: list[str]

    @property
    def can_start(self) -> bool:
        return not any(check.blocks for check in self.checks)

    def as_json(self) -> dict[str, Any]:
        """As the API gives it."""
        return {
            "can_start": self.can_start,
            "checks": [
                {"level": "error" if check.blocks else "warning", **{k: getattr(check, k) for k in CHECK_FIELDS}}
                for check in self.checks
            ],
            "episodes": self.episodes,
            "passes": self.passes,
            "tokens": asdict(self.tokens),
            "seconds": self.seconds,
            "accelerator_seconds": self.accelerator_seconds,
            "wait_seconds": self.wait_seconds,
            "quotas": [
                {"name": one.name, "limit": one.limit, "used": one.used, "left": one.left} for one in self.quotas
            ],
            "basis": self.basis,
        }


CHECK_FIELDS = ("field", "message", "hint")


def estimate_job(
    *,
    tenant: Tenant,
    name: str = "",
    base_model_id: str,
    dataset_version: DatasetVersion | None,
    reward_version: RewardVersion,
    settings: dict[str, Any],
    start_from: AdapterVersion | None = None,
) -> Estimate:
    """Arguments and refusals as ``portal.jobs.services.create_job``, quotas apart, which are among the checks.

    Raises InvalidInput (field errors), Http404.
    """
    require_own(tenant=tenant, dataset_version=dataset_version, reward_version=reward_version, start_from=start_from)
    spec = build_spec(
        job_id=uuid.uuid4(),
        tenant=tenant,
        name=name.strip() or UNNAMED,
        base_model_id=base_model_id,
        dataset_version=dataset_version,
        reward_version=reward_version,
        settings=settings,
        start_from=start_from,
    )
    base_model = find_base_model(base_model_id)
    assert base_model is not None, "build_spec refuses base models that are not offered"
    lengths = measure_prompts(dataset_version, base_model, spec.environment.system_prompt) if dataset_version else None
    rates = measure_rates(base_model)
    usual = usual_completion_tokens(tenant, base_model_id, dataset_version)
    tokens = _tokens(spec, lengths, usual)
    accelerator_seconds = _accelerator_seconds(tokens, rates)
    expected = {
        QuotaKind.SAMPLED_TOKENS: tokens.sampled,
        QuotaKind.TRAINED_TOKENS: tokens.trained,
        QuotaKind.ACCELERATOR_SECONDS: accelerator_seconds,
    }
    quotas = quotas_after(tenant, steps=spec.training.steps, expected=expected if tokens.completion_mean else {})
    return Estimate(
        spec=spec,
        episodes=_episodes(spec),
        passes=_passes(spec),
        tokens=tokens,
        seconds=_seconds(spec, tokens, rates),
        accelerator_seconds=accelerator_seconds,
        wait_seconds=rates.wait_seconds,
        quotas=quotas,
        checks=check_launch(tenant=tenant, spec=spec, dataset_version=dataset_version, lengths=lengths, quotas=quotas),
        basis=_basis(spec, lengths, usual, rates),
    )


def _episodes(spec: JobSpec) -> int:
    return spec.training.steps * spec.training.prompts_per_step * spec.training.group_size


def _passes(spec: JobSpec) -> float | None:
    rows = spec.dataset.train_rows if spec.dataset else getattr(spec.environment, "train_rows", 0)
    return spec.training.steps * spec.training.prompts_per_step / rows if rows else None


def _tokens(spec: JobSpec, lengths: PromptLengths | None, usual: float | None) -> Tokens:
    episodes = _episodes(spec)
    most = _most_sampled_per_episode(spec)
    mean = min(usual, most) if usual is not None else None
    sampled_at_most = episodes * most * spec.training.sampling_rounds
    sampled = round(episodes * mean) if mean is not None else sampled_at_most
    trained_at_most = episodes * most * spec.training.epochs
    return Tokens(
        prompt=round(episodes * lengths.mean) if lengths else None,
        sampled=sampled,
        sampled_at_most=sampled_at_most,
        trained=round(episodes * mean) * spec.training.epochs if mean is not None else trained_at_most,
        trained_at_most=trained_at_most,
        completion_mean=mean,
    )


def _most_sampled_per_episode(spec: JobSpec) -> int:
    """Over all turns; what the environment says is not sampled."""
    environment = spec.environment
    if not isinstance(environment, MultiTurn):
        return spec.sampling.max_tokens
    most = min(environment.max_turns * spec.sampling.max_tokens, spec.base_model.context_length)
    return min(most, environment.max_episode_tokens) if environment.max_episode_tokens else most


def _seconds(spec: JobSpec, tokens: Tokens, rates: Rates) -> float | None:
    """Wall-clock time once it runs, at the pool's measured rates; it ends at the job's own limit at the latest."""
    if rates.sampled_per_second is None or rates.trained_per_second is None:
        return None
    sampling = tokens.sampled / rates.sampled_per_second
    training = tokens.trained / rates.trained_per_second
    # Strictly on-policy the stages take turns; otherwise the next batches are drawn while one is trained.
    both = sampling + training if spec.training.max_staleness == 0 else max(sampling, training)
    return min(both + spec.training.steps * rates.publish_seconds, float(spec.limits.max_wall_seconds))


def _accelerator_seconds(tokens: Tokens, rates: Rates) -> float | None:
    if rates.accelerator_seconds_per_token is None:
        return None
    return (tokens.sampled + tokens.trained) * rates.accelerator_seconds_per_token


def _basis(spec: JobSpec, lengths: PromptLengths | None, usual: float | None, rates: Rates) -> list[str]:
    said = []
    if lengths is None:
        said.append("Prompt tokens are not known before the tasks are generated.")
    elif lengths.exact:
        said.append(f"Prompts: {lengths.mean:.0f} tokens in the mean of a sample, by {spec.base_model.id}'s tokenizer.")
    else:
        said.append(
            f"Prompts: about {lengths.mean:.0f} tokens, at {CHARACTERS_PER_TOKEN:g} characters a token; "
            f"{spec.base_model.id}'s own tokenizer counts once the engine has prepared it."
        )
    if usual is not None:
        said.append(f"Completions: {usual:.0f} tokens in the mean, as in your last job on this dataset.")
    else:
        said.append("Completions: all as long as they may be, since you have no earlier job on these rows.")
    if spec.training.sampling_rounds > 1:
        said.append(f"At most: with up to {spec.training.sampling_rounds} rounds of sampling a step.")
    if rates.known:
        said.append(f"Time: the median of the last {rates.jobs} job(s) on this base model, as busy as it was then.")
        said.append("Evaluations and the environment's own time come on top.")
    else:
        said.append(f"Time: no job on {spec.base_model.id} has measured it yet, so only tokens are given.")
    if rates.running:
        said.append(f"{rates.running} job(s) share this base model now.")
    return said
