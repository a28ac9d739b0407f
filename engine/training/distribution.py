"""The policy's distributions over the vocabulary at some tokens, and their gradient, from one buffer of logits."""

from __future__ import annotations

import torch

from engine.native import fused


class Distribution:
    """softmax(logits / temperature) of each row. On CPUs the buffer is all the memory it takes."""

    def __init__(self, logits: torch.Tensor, targets: torch.Tensor, temperature: float) -> None:
        """logits [N, vocabulary], which belong to the object from now on; targets [N], ids of the trained tokens."""
        self._logits = logits
        self._targets = targets
        self._temperature = temperature
        self._fused = fused.serves(logits)
        self._log_sums: torch.Tensor
        self._entropies: torch.Tensor
        self.logprobs: torch.Tensor
        """[N] log-probabilities of the targets, fp32."""
        if self._fused:
            self._log_sums, self.logprobs, self._entropies = fused.distribution(logits, targets, temperature)
        else:
            if temperature != 1:
                self._logits = logits.float().div_(temperature)
            self._log_probabilities = torch.log_softmax(self._logits, dim=-1, dtype=torch.float32)
            self.logprobs = self._log_probabilities.gather(1, targets[:, None]).squeeze(1)

    def entropy_and_gradient(self, slopes: torch.Tensor, bonuses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Entropies [N] in nats, and the gradient [N, vocabulary] of sum(slopes * logprobs + bonuses * entropies) with
        respect to the logits, in fp32 or their dtype. The object is of no use after that."""
        if self._fused:
            gradient = fused.distribution_gradient(
                self._logits, self._targets, self._temperature, self._log_sums, self._entropies, slopes, bonuses
            )
            return self._entropies, gradient
        probabilities = torch.exp(self._log_probabilities)
        entropies = -torch.linalg.vecdot(probabilities, self._log_probabilities)
        # d logprob / d logits = (onehot(target) - probabilities) / temperature
        # d entropy / d logits = -probabilities * (log_probabilities + entropy) / temperature
        slopes, bonuses = slopes[:, None] / self._temperature, bonuses[:, None] / self._temperature
        by_entropy = self._log_probabilities.add_(entropies[:, None]).mul_(bonuses)
        gradient = probabilities.mul_(by_entropy.add_(slopes).neg_())
        return entropies, gradient.scatter_add_(1, self._targets[:, None], slopes)
