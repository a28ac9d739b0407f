"""How an episode unfolds."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from engine.spec.contract import Contract


class SingleTurn(Contract):
    """The model answers once; the episode ends."""

    type: Literal["single_turn"] = "single_turn"
    system_prompt: str = Field(default="", max_length=8000)
    """Put before the row's messages where they have no system message of their own."""


class MultiTurn(Contract):
    """What every environment of several turns has. ``sampling.max_tokens`` limits each turn.

    Graders see the model's last reply. An episode that a limit ends is scored as far as it got, and marked truncated.
    """

    system_prompt: str = Field(default="", max_length=8000)
    """Put before the row's messages where they have no system message of their own."""
    max_turns: int = Field(default=8, ge=1, le=256)
    """Replies of the model in one episode."""
    max_episode_tokens: int = Field(default=0, ge=0, le=1_048_576)
    """Tokens after the prompt, the environment's included; 0 means as many as the context leaves."""
    step_timeout_seconds: float = Field(default=30.0, gt=0, le=3600)
    """Wall-clock limit of one answer of the environment. Past it the episode scores 0, as an error."""
    max_observation_characters: int = Field(default=20_000, ge=100, le=1_000_000)
    """Longest answer of the environment. One that is longer ends the episode, which scores 0, as an error."""


class Tools(MultiTurn):
    """The model may call tools; the first reply without a call ends the episode.

    A call is ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>`` (Hermes, Qwen) or a fenced block of such
    JSON. The system message describes the tools. Reward parts: ``tool_calls``, ``malformed_calls``.
    """

    type: Literal["tools"] = "tools"
    tools: list[Literal["calculator", "search", "python"]] = Field(default=["calculator"], min_length=1)
    documents_sha256: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")
    """What ``search`` finds, besides the ``documents`` in a row's metadata (a list of texts, or of objects with
    ``text`` and optionally ``title``): an uploaded file of such objects, one JSON object a line, named by its
    sha256."""
    search_results: int = Field(default=3, ge=1, le=20)
    """Documents one search returns."""

    @field_validator("tools")
    @classmethod
    def _once(cls, tools: list[str]) -> list[str]:
        if len(set(tools)) != len(tools):
            raise ValueError("a tool is named twice")
        return tools


class ReasoningGym(Contract):
    """Tasks of a reasoning-gym dataset, answered in one turn and scored by its own scorer.

    Without a dataset of its own the job draws generated tasks: ``train_rows`` and ``held_out_rows`` of them. With one,
    its rows are reasoning-gym entries (question, answer, metadata). The grader ``environment`` is the dataset's scorer.
    """

    type: Literal["reasoning_gym"] = "reasoning_gym"
    system_prompt: str = Field(default="", max_length=8000)
    """Put before the row's messages where they have no system message of their own."""
    dataset: str = Field(pattern=r"^[a-z0-9_]{1,64}$")
    """Name of the reasoning-gym dataset, e.g. ``countdown``."""
    config: dict[str, Any] = Field(default_factory=dict)
    """Its settings, e.g. ``{"min_numbers": 3}``; ``size`` and ``seed`` are not among them."""
    train_rows: int = Field(default=1000, ge=1, le=100_000)
    held_out_rows: int = Field(default=64, ge=0, le=10_000)
    tasks_seed: int = Field(default=0, ge=0, lt=2**31)
    """Which tasks are generated."""

    @field_validator("config")
    @classmethod
    def _free(cls, config: dict[str, Any]) -> dict[str, Any]:
        if taken := sorted({"size", "seed"} & config.keys()):
            raise ValueError(f"{taken[0]} cannot be set here; use train_rows, held_out_rows and tasks_seed")
        return config


class HttpEnvironment(MultiTurn):
    """What environments behind an address have in common."""

    url: str = Field(pattern=r"^https?://[^\s/?#@]+(/[^\s?#]*)?$", max_length=500)
    """Base address, without user, query or fragment. Private, loopback and link-local addresses need the operator's
    leave."""
    token_name: str = Field(default="", pattern=r"^([a-z0-9][a-z0-9._-]{0,63})?$")
    """Name of a stored token of the tenant, sent as ``Authorization: Bearer``; never the token itself."""


class Remote(HttpEnvironment):
    """A server of the tenant that plays the environment, by the protocol of ``engine.environments.remote``."""

    type: Literal["remote"] = "remote"


class OpenEnv(HttpEnvironment):
    """A server of the OpenEnv standard. Its rewards are summed up as the reward part ``reward``."""

    type: Literal["openenv"] = "openenv"
    action_field: str = Field(default="message", pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")
    """Field of the action that the model's reply is put in."""
    action: dict[str, Any] = Field(default_factory=dict)
    """The action's other fields, the same at every step."""
    observation_field: str = Field(default="", max_length=64)
    """Field of the observation shown to the model; empty shows all of it, as JSON."""


Environment = Annotated[SingleTurn | Tools | ReasoningGym | Remote | OpenEnv, Field(discriminator="type")]
