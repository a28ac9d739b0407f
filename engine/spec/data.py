"""Base models and datasets."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from engine.spec.contract import NAME_PATTERN, Contract


class BaseModelSpec(Contract):
    """A frozen causal LM the operator offers. One pool (rollout workers + trainer) serves each."""

    id: str = Field(pattern=NAME_PATTERN)
    """Short name, unique in the installation, e.g. ``smollm2-135m-instruct``."""
    source: Literal["bundled", "huggingface", "local"] = "bundled"
    """Where the weights come from: a pip package that ships them, the Hugging Face hub, or a folder on the engine."""
    location: str = Field(min_length=1, max_length=500)
    """For ``bundled`` the package name, for ``huggingface`` the repository id, for ``local`` an absolute folder."""
    revision: str = Field(default="", max_length=100)
    """Hugging Face revision (commit, tag or branch); empty means the default branch."""
    context_length: int = Field(ge=16, le=1_048_576)
    """Longest prompt plus completion served, in tokens."""
    max_lora_rank: int = Field(default=16, ge=1, le=512)
    """Highest LoRA rank a job may ask for. Keep it as low as needed: serving slows down with it."""
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    """Number format of the frozen weights in rollout and trainer."""


class Turn(Contract):
    """One message of an episode."""

    role: Literal["system", "user", "assistant", "tool"]
    """``tool``: the result of a call, said by the environment."""
    content: str


class Message(Turn):
    """One chat message of a row."""

    role: Literal["system", "user", "assistant"]


class DatasetRow(Contract):
    """One row of a dataset version. In the file: one such JSON object a line."""

    messages: list[Message] = Field(min_length=1)
    """The prompt as a chat. The last message is the user's."""
    answer: str = ""
    """The reference answer graders compare with; may be empty for graders that need none."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    """Anything else the tenant sent with the row."""
    split: Literal["train", "held_out"] = "train"
    """Training never sees a ``held_out`` row; evaluation sees nothing else."""

    @field_validator("messages")
    @classmethod
    def _ends_with_user(cls, messages: list[Message]) -> list[Message]:
        if messages[-1].role != "user":
            raise ValueError(f"the last message must have role 'user', not '{messages[-1].role}'")
        return messages


class DatasetRef(Contract):
    """Reference to the rows of one immutable dataset version."""

    path: str = Field(min_length=1)
    """File of JSON lines (``DatasetRow``), absolute, readable by the engine."""
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """Digest of the file's bytes; the engine refuses a file that differs."""
    train_rows: int = Field(ge=1)
    held_out_rows: int = Field(ge=0)
