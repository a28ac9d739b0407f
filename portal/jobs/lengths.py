"""How long a dataset version's prompts are in a base model's tokens, without reading all of them.

The base model's own tokenizer and chat template count, where the engine has prepared the model on a disk the portal
sees; else characters do, at ``CHARACTERS_PER_TOKEN``. The mean is of ``SAMPLE`` rows spread over the file, the longest
of the ``LONGEST`` rows with the most bytes.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

from django.conf import settings
from django.core.cache import cache
from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from portal.base_models.models import BaseModel
from portal.datasets.models import DatasetVersion

SAMPLE = 200
LONGEST = 20
HISTOGRAM_SAMPLE = 1000
CHARACTERS_PER_TOKEN = 4.0
"""English prose; other scripts and code have fewer."""
TOKENS_PER_MESSAGE = 6
"""Role and delimiters, where the chat template cannot be used."""
CACHED_SECONDS = 24 * 3600


@dataclass(frozen=True)
class PromptLengths:
    """Prompt lengths in tokens, the chat template's included."""

    mean: float
    longest: int
    longest_line: int
    """Of the dataset file, counted from 1."""
    exact: bool
    """Counted by the base model's tokenizer."""

    def over(self, room: int) -> bool:
        """Whether a prompt does not fit into ``room`` tokens."""
        return self.longest > room


@dataclass(frozen=True)
class LengthSample:
    """Prompt tokens of rows spread over the file, in the order of the file."""

    tokens: tuple[int, ...]
    exact: bool
    """Counted by the base model's tokenizer."""


def measure_prompts(version: DatasetVersion, base_model: BaseModel, system_prompt: str = "") -> PromptLengths | None:
    """None where the file cannot be read. The result is kept for a day."""
    folder = _model_folder(base_model)
    told_apart = f"{version.sha256}:{folder}:{system_prompt}".encode()
    key = f"prompt-lengths:{hashlib.sha256(told_apart).hexdigest()}"
    found: PromptLengths | None = cache.get(key)
    if found is None:
        try:
            found = _measure(version.path, folder, system_prompt)
        except OSError:
            return None
        cache.set(key, found, CACHED_SECONDS)
    return found


def sample_lengths(version: DatasetVersion, base_model: BaseModel) -> LengthSample | None:
    """Of up to ``2 * HISTOGRAM_SAMPLE`` rows. None where the file cannot be read. The result is kept for a day."""
    folder = _model_folder(base_model)
    key = f"prompt-sample:{hashlib.sha256(f'{version.sha256}:{folder}'.encode()).hexdigest()}"
    found: LengthSample | None = cache.get(key)
    if found is None:
        count = _Counter(folder)
        stride = max(1, version.rows // HISTOGRAM_SAMPLE)
        try:
            with version.path.open("rb") as file:
                tokens = tuple(count(json.loads(line)["messages"]) for line in islice(file, 0, None, stride))
        except OSError:
            return None
        found = LengthSample(tokens, count.exact)
        cache.set(key, found, CACHED_SECONDS)
    return found


def _measure(path: Path, folder: Path | None, system_prompt: str) -> PromptLengths:
    count = _Counter(folder)
    starts, sizes = array("Q"), array("Q")
    with path.open("rb") as file:
        start = 0
        for line in file:
            starts.append(start)
            sizes.append(len(line))
            start += len(line)

        def tokens(index: int) -> int:
            file.seek(starts[index])
            return count(_with_system(json.loads(file.readline())["messages"], system_prompt))

        stride = max(1, len(starts) // SAMPLE)
        mean = fmean(tokens(index) for index in range(0, len(starts), stride))
        candidates = sorted(range(len(starts)), key=lambda index: sizes[index], reverse=True)[:LONGEST]
        longest, index = max((tokens(index), index) for index in candidates)
    return PromptLengths(mean=mean, longest=longest, longest_line=index + 1, exact=count.exact)


def _with_system(messages: list[dict[str, str]], system_prompt: str) -> list[dict[str, str]]:
    if not system_prompt or messages[0]["role"] == "system":
        return messages
    return [{"role": "system", "content": system_prompt}, *messages]


class _Counter:
    """Tokens of a chat up to the opening of the model's turn."""

    def __init__(self, folder: Path | None) -> None:
        loaded: tuple[Any, Any] = _load(folder) if folder else (None, None)
        self._tokenizer, self._template = loaded
        self.exact = self._tokenizer is not None

    def __call__(self, messages: list[dict[str, str]]) -> int:
        if self._tokenizer is None:
            characters = sum(len(message["content"]) for message in messages)
            return round(characters / CHARACTERS_PER_TOKEN) + TOKENS_PER_MESSAGE * (len(messages) + 1)
        try:
            text = self._template.render(messages=messages, add_generation_prompt=True, bos_token="", eos_token="")
        except (TemplateError, TypeError, ValueError):
            contents = "\n".join(message["content"] for message in messages)
            overhead = TOKENS_PER_MESSAGE * (len(messages) + 1)
            return len(self._tokenizer.encode(contents, add_special_tokens=False)) + overhead
        return len(self._tokenizer.encode(text, add_special_tokens=False))


@lru_cache(maxsize=8)
def _load(folder: Path) -> tuple[Any, Any]:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    template = folder / "chat_template.jinja"
    source = (
        template.read_text()
        if template.is_file()
        else json.loads((folder / "tokenizer_config.json").read_text()).get("chat_template", "")
    )
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = _refuse
    return tokenizer, environment.from_string(source if isinstance(source, str) else source[0]["template"])


def _refuse(message: str) -> None:
    raise TemplateError(message)


def _model_folder(base_model: BaseModel) -> Path | None:
    """Where the engine has the model's tokenizer, if it is there yet; see ``engine.models.prepare``."""
    if base_model.source == BaseModel.Source.LOCAL:
        folders = [Path(base_model.location)]
    else:
        folders = sorted(
            (Path(settings.MARLAAS_VAR) / "models").glob(f"{base_model.pk}-*"), key=lambda path: path.stat().st_mtime
        )
    return next((folder for folder in reversed(folders) if (folder / "tokenizer.json").is_file()), None)
