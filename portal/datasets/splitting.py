"""Which rows are held out where the upload does not say.

Invariants: deterministic in (prompts, seed); rows with the same prompt go to the same side, so that a held-out question
was never trained on; at least one row is held out where that is asked for and there are two rows; training keeps at
least one.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections import Counter
from collections.abc import Sequence
from typing import Any

TRAIN, HELD_OUT, UNDECIDED = 0, 1, 2


def prompt_hash(messages: Sequence[dict[str, Any]], seed: int) -> int:
    """64 bits that order prompts at random under ``seed``."""
    digest = hashlib.sha256(f"{seed}:{json.dumps(messages, sort_keys=True)}".encode()).digest()
    return int.from_bytes(digest[:8], "big")


def assign_splits(
    splits: array[int], hashes: array[int], fraction: float, *, count_rows: int | None = None
) -> array[int]:
    """Return ``splits`` with every UNDECIDED entry decided; ``hashes`` has one entry per row, as ``prompt_hash`` says.

    Prompts are held out in the order of their hashes until ``fraction`` of the undecided rows is reached, or
    ``count_rows`` of them where that is given.
    """
    decided = array("b", splits)
    open_rows = [row for row, split in enumerate(splits) if split == UNDECIDED]
    wanted = round(fraction * len(open_rows)) if count_rows is None else min(count_rows, len(open_rows))
    if (fraction > 0 if count_rows is None else count_rows > 0) and HELD_OUT not in splits and len(splits) >= 2:
        wanted = max(1, wanted)
    rows_of_prompt = Counter(hashes[row] for row in open_rows)
    keep_one = TRAIN not in splits
    held_out: set[int] = set()
    count = 0
    for prompt in sorted(rows_of_prompt):
        if count >= wanted or (keep_one and len(held_out) == len(rows_of_prompt) - 1):
            break
        held_out.add(prompt)
        count += rows_of_prompt[prompt]
    for row in open_rows:
        decided[row] = HELD_OUT if hashes[row] in held_out else TRAIN
    if wanted and not held_out and len(open_rows) >= 2:  # one prompt only: a repeat is the best there is
        decided[open_rows[-1]] = HELD_OUT
    return decided
