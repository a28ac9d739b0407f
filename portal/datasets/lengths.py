"""How long a version's prompts are, as a histogram against a base model's context."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

from portal.base_models.models import BaseModel
from portal.datasets.models import DatasetVersion
from portal.jobs.lengths import sample_lengths

BINS = 24
BOX = 60
"""Height of the drawing, in its own units."""


@dataclass(frozen=True)
class Bin:
    """Rows with ``start`` <= tokens < ``end``."""

    start: int
    end: int
    rows: int
    share: float
    """Of the fullest bin."""
    over: bool
    """Longer than the context."""

    @property
    def last(self) -> int:
        return self.end - 1

    @property
    def height(self) -> float:
        """Of its bar in a box of ``BOX`` units; a bin with any rows can be seen."""
        return max(1.5, round(BOX * self.share, 2)) if self.rows else 0

    @property
    def top(self) -> float:
        return round(BOX - self.height, 2)


@dataclass(frozen=True)
class Histogram:
    """Prompt tokens of sampled rows."""

    base_model: BaseModel
    exact: bool
    sampled_rows: int
    mean: float
    longest: int
    over: int
    """Sampled rows whose prompt does not fit into the context."""
    bins: list[Bin]

    @property
    def share(self) -> float:
        """The longest prompt as a part of the context."""
        return self.longest / self.context_length

    @property
    def context_length(self) -> int:
        return self.base_model.context_length


def prompt_histogram(version: DatasetVersion, base_model: BaseModel) -> Histogram | None:
    """None where the version's file cannot be read."""
    found = sample_lengths(version, base_model)
    if found is None:
        return None
    tokens, context = found.tokens, base_model.context_length
    width = max(1, -(-(max(tokens) + 1) // BINS))
    counts = [0] * (max(tokens) // width + 1)
    for count in tokens:
        counts[count // width] += 1
    bins = [
        Bin(index * width, (index + 1) * width, rows, rows / max(counts), index * width >= context)
        for index, rows in enumerate(counts)
    ]
    over = sum(count >= context for count in tokens)
    return Histogram(base_model, found.exact, len(tokens), fmean(tokens), max(tokens), over, bins)
