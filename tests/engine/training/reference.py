"""The trainer's arithmetic done plainly: PEFT's own layers, one sequence at a time, autograd throughout."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from engine.spec import JobSpec
from engine.types import TrainBatch, Trajectory


def load_peft(model_dir: Path, adapter_dir: str | Path, *, trainable: bool = False) -> PeftModel:
    """The base in fp32 with an exported adapter."""
    base = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32, attn_implementation="eager")
    return PeftModel.from_pretrained(base, str(adapter_dir), is_trainable=trainable).eval()


def sequence_logprobs(model: torch.nn.Module, token_ids: list[int], temperature: float = 1.0) -> torch.Tensor:
    """[len - 1] log-probability of each token but the first."""
    logits = model(input_ids=torch.tensor([token_ids])).logits[0, :-1] / temperature
    return torch.log_softmax(logits.float(), -1).gather(1, torch.tensor(token_ids[1:])[:, None])[:, 0]


def batch_loss(model: torch.nn.Module, batch: TrainBatch, *, temperature: float, cap: float) -> torch.Tensor:
    """The GRPO loss of a batch at its first update: -sum(A * w * exp(logp - sg(logp))) / tokens the model sampled."""
    total, tokens = torch.zeros(()), 0
    for group, advantages in zip(batch.groups, batch.advantages, strict=True):
        for trajectory, advantage in zip(group.trajectories, advantages, strict=True):
            logprobs = sequence_logprobs(model, group.prompt_ids + trajectory.token_ids, temperature)
            logprobs = logprobs[len(group.prompt_ids) - 1 :]
            for logprob, sampler, sampled in zip(logprobs, trajectory.logprobs, trajectory.loss_mask, strict=True):
                if sampled:
                    weight = min(math.exp(logprob.item() - sampler), cap)
                    total = total - advantage * weight * torch.exp(logprob - logprob.detach())
                    tokens += 1
    return total / tokens


def plain_updates(model: PeftModel, batch: TrainBatch, spec: JobSpec) -> list[tuple[float, float]]:
    """All of a step's AdamW updates of a PEFT model; (loss, gradient norm before clipping) of each."""
    settings = spec.training
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(
        parameters,
        lr=settings.learning_rate,
        betas=(settings.adam_beta1, settings.adam_beta2),
        weight_decay=settings.weight_decay,
    )
    episodes = [
        Episode(group.prompt_ids, trajectory, advantage)
        for group, advantages in zip(batch.groups, batch.advantages, strict=True)
        for trajectory, advantage in zip(group.trajectories, advantages, strict=True)
    ]
    temperature = spec.sampling.temperature
    with torch.no_grad():
        for episode in episodes:
            episode.old = episode.logprobs(model, temperature)[0]
            with model.disable_adapter():
                episode.base = episode.logprobs(model, temperature)[0]
    size = len(batch.groups[0].trajectories)
    updates = []
    for _ in range(settings.epochs):
        for part in range(settings.minibatches):
            share = [e for index, e in enumerate(episodes) if (index // size) % settings.minibatches == part]
            optimizer.zero_grad()
            loss = batch_objective(model, share, spec)
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(parameters, settings.max_grad_norm)
            optimizer.step()
            updates.append((loss.item(), norm.item()))
    return updates


@dataclass
class Episode:
    """One trajectory and what is computed for it before the first update."""

    prompt: list[int]
    trajectory: Trajectory
    advantage: float
    old: torch.Tensor | None = None
    base: torch.Tensor | None = None

    def logprobs(self, model: torch.nn.Module, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
        """[n] log-probabilities of the sampled tokens, and the policy's entropy where each was drawn."""
        ids = self.prompt + self.trajectory.token_ids
        logits = model(input_ids=torch.tensor([ids])).logits[0, :-1].float() / temperature
        table = torch.log_softmax(logits, -1)[len(self.prompt) - 1 :]
        mask = torch.tensor(self.trajectory.loss_mask)
        chosen = table.gather(1, torch.tensor(self.trajectory.token_ids)[:, None])[:, 0]
        return chosen[mask], -(table.exp() * table).sum(-1)[mask]


def batch_objective(model: torch.nn.Module, episodes: list[Episode], spec: JobSpec) -> torch.Tensor:
    """The loss of the episodes as the papers write it."""
    settings = spec.training
    per_episode = []
    for episode in episodes:
        logprobs, entropy = episode.logprobs(model, spec.sampling.temperature)
        sampler = torch.tensor(
            [p for p, own in zip(episode.trajectory.logprobs, episode.trajectory.loss_mask, strict=True) if own]
        )
        assert episode.old is not None and episode.base is not None
        weight = (episode.old - sampler).exp()
        if settings.importance == "mask":
            inside = (weight >= settings.importance_floor) & (weight <= settings.importance_cap)
            weight = weight * inside
        else:
            weight = weight.minimum(torch.tensor(settings.importance_cap))
        advantage = episode.advantage
        ratio = (logprobs - episode.old).exp()
        if settings.algorithm == "gspo":
            assert bool((weight == 1).all()), "the paper has no importance weight"
            sequence = (logprobs - episode.old).mean().exp()
            bounded = sequence.clamp(1 - settings.sequence_clip_low, 1 + settings.sequence_clip_high)
            losses = -torch.minimum(sequence * advantage, bounded * advantage).expand(len(logprobs))
        elif settings.algorithm == "cispo":
            losses = -weight * ratio.detach().minimum(torch.tensor(settings.ratio_cap)) * advantage * logprobs
        else:
            bounded = ratio.clamp(1 - settings.clip_low, 1 + settings.clip_high)
            losses = -weight * torch.minimum(ratio * advantage, bounded * advantage)
        if settings.kl_coefficient:
            difference = logprobs - episode.base
            estimate = {
                "k1": difference.detach() * (logprobs - logprobs.detach()).exp(),
                "k2": difference**2 / 2,
                "k3": (-difference).exp() - 1 + difference,
            }[settings.kl_estimator]
            losses = losses + settings.kl_coefficient * weight * estimate
        per_episode.append(losses - settings.entropy_coefficient * entropy)
    if settings.algorithm == "gspo":
        return torch.stack([losses.mean() for losses in per_episode]).mean()
    if settings.algorithm in ("dr_grpo", "rloo"):
        return torch.cat(per_episode).sum() / (len(episodes) * spec.sampling.max_tokens)
    return torch.cat(per_episode).mean()
