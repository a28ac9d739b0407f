"""Something is learnt: the reward rises in a few steps, sampling with PEFT's own forward pass."""

from __future__ import annotations

from pathlib import Path

import torch

from engine.training.advantages import group_advantages
from engine.types import Group, Score, TrainBatch, Trajectory
from tests.engine.training.factory import VOCAB, make_spec
from tests.engine.training.reference import load_peft

PROMPTS = [[3, 14, 15], [9, 2, 6, 5]]
GROUP_SIZE, LENGTH, STEPS = 16, 4, 12


@torch.no_grad()
def sample(
    model: torch.nn.Module, prompt: list[int], generator: torch.Generator
) -> list[tuple[list[int], list[float]]]:
    """GROUP_SIZE completions of LENGTH tokens with their log-probabilities."""
    ids = torch.tensor([prompt] * GROUP_SIZE)
    chosen_logprobs = []
    for _ in range(LENGTH):
        logprobs = torch.log_softmax(model(input_ids=ids).logits[:, -1], -1)
        chosen = torch.multinomial(logprobs.exp(), 1, generator=generator)
        chosen_logprobs.append(logprobs.gather(1, chosen))
        ids = torch.cat([ids, chosen], dim=1)
    return list(zip(ids[:, len(prompt) :].tolist(), torch.cat(chosen_logprobs, dim=1).tolist(), strict=True))


def test_the_reward_rises(tiny_model: Path, tmp_path: Path, make_trainer):
    """A completion's reward is the share of its tokens in the lower half of the ids."""
    trainer = make_trainer()
    spec = make_spec(learning_rate=2e-2)
    commit = trainer.open_job(spec, str(tmp_path))
    generator = torch.Generator().manual_seed(0)
    means = []
    for step in range(1, STEPS + 1):
        model = load_peft(tiny_model, commit.path)
        groups, advantages = [], []
        for row, prompt in enumerate(PROMPTS):
            completions = sample(model, prompt, generator)
            rewards = [sum(token < VOCAB // 2 for token in ids) / LENGTH for ids, _ in completions]
            trajectories = [
                Trajectory(ids, [True] * LENGTH, logprobs, step - 1, "", True, Score(reward))
                for (ids, logprobs), reward in zip(completions, rewards, strict=True)
            ]
            groups.append(Group(row, prompt, "", "", trajectories))
            advantages.append(group_advantages(rewards))
        result = trainer.train_step(TrainBatch(spec.job_id, step, 2 * step, groups, advantages, [1, 2, 3]))
        commit = result.commit
        means.append(sum(t.score.total for group in groups for t in group.trajectories) / (2 * GROUP_SIZE))
        # the sampler is the trainer's policy to rounding: nothing to correct
        assert result.metrics["logprob_gap"] < 1e-4
        assert abs(result.metrics["importance_mean"] - 1) < 1e-4
    assert sum(means[-3:]) / 3 > sum(means[:3]) / 3 + 0.2
