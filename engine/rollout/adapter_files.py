"""Checks of an adapter's files before the engine reads them.

Invariant: an adapter that passes is served whole: content as published, format and rank as the engine takes them, and
no module that the engine would leave out without a word.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from engine.types import AdapterRef

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"

TARGET_MODULES = [
    "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "qkv_proj", "gate_up_proj",
]  # fmt: skip
"""Linear layers of the blocks that can carry an adapter. The output head and the embeddings cannot: vLLM would keep a
vocabulary-sized matrix per slot for them."""


class AdapterError(ValueError):
    """This adapter cannot be served; others are not concerned."""


def check_adapter(ref: AdapterRef, max_rank: int) -> None:
    """Read and check the files of ``ref``. Raises AdapterError, which names the adapter and what is wrong."""
    folder = Path(ref.path)
    try:
        weights = (folder / WEIGHTS).read_bytes()
        config = json.loads((folder / CONFIG).read_text())
    except OSError as error:
        raise AdapterError(f"adapter {ref.name} is not in the store: {error.filename}: {error.strerror}") from None
    except ValueError as error:
        raise AdapterError(f"adapter {ref.name}: {CONFIG} is not JSON: {error}") from None
    digest = hashlib.sha256(weights).hexdigest()
    if digest != ref.sha256:
        raise AdapterError(
            f"adapter {ref.name}: {WEIGHTS} has sha256 {digest[:12]}..., not the published {ref.sha256[:12]}...; "
            "the file was changed or damaged"
        )
    rank = config.get("r")
    if not isinstance(rank, int) or not 1 <= rank <= max_rank:
        raise AdapterError(f"adapter {ref.name} has rank {rank}; this pool serves ranks 1 to {max_rank}")
    if foreign := sorted(_modules(weights, ref) - set(TARGET_MODULES)):
        raise AdapterError(
            f"adapter {ref.name} has weights for {', '.join(foreign)}; served are {', '.join(TARGET_MODULES)}"
        )


def _modules(weights: bytes, ref: AdapterRef) -> set[str]:
    """Last part of the names of the modules with weights, from the safetensors header."""
    try:
        size = int.from_bytes(weights[:8], "little")
        names = json.loads(weights[8 : 8 + size]).keys() - {"__metadata__"}
    except ValueError:
        raise AdapterError(f"adapter {ref.name}: {WEIGHTS} is not a safetensors file") from None
    if not names:
        raise AdapterError(f"adapter {ref.name}: {WEIGHTS} holds no weights")
    return {name.split(".lora_")[0].rpartition(".")[2] for name in names}
