"""Rendering of chats to token ids, once: token ids go to the rollout and the trainer, text only to people and graders.

The model's own chat template is used as it is. Where neither the row nor the environment gives a system message, some
templates put in a default one (SmolLM2: "You are a helpful AI assistant named SmolLM, ..."). It stays: the model was
tuned with it, and any client that renders with the same template sends it too, so the adapter is trained on the
prompts it will be served. Setting the environment's system prompt replaces it.

No torch here: loading takes a second or two, not ten.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import jinja2
from transformers import PreTrainedTokenizerFast

from engine.data import DatasetError, NumberedRow
from engine.spec import Message

SHOWN_LINES = 5


class ChatRenderer:
    """Chat template and tokenizer of one prepared base model."""

    def __init__(self, model_dir: str | Path) -> None:
        self._tokenizer = PreTrainedTokenizerFast.from_pretrained(str(model_dir), local_files_only=True)
        self.end_of_turn_ids: frozenset[int] = _end_of_turn_ids(Path(model_dir), self._tokenizer.eos_token_id)
        """Ids that end the model's turn: the tokenizer's and those of generation_config.json."""

    def prompt_ids(self, messages: Sequence[Message], system_prompt: str = "") -> list[int]:
        """Token ids of the chat, up to and including the opening of the assistant's turn.

        Args:
            system_prompt: put before the messages unless they start with a system message of their own.

        Raises:
            DatasetError: the template refuses the chat, e.g. roles in an order it does not know.
        """
        chat = [{"role": message.role, "content": message.content} for message in messages]
        if system_prompt and chat[0]["role"] != "system":
            chat.insert(0, {"role": "system", "content": system_prompt})
        try:
            ids: list[int] = self._tokenizer.apply_chat_template(
                chat, add_generation_prompt=True, tokenize=True, return_dict=False
            )
        except jinja2.TemplateError as error:
            raise DatasetError(f"The model's chat template refuses the messages: {error}.") from None
        return ids

    def render(self, rows: Sequence[NumberedRow], system_prompt: str = "") -> list[list[int]]:
        """``prompt_ids`` of every row, in order. A DatasetError names the line."""
        return [self._row_ids(number, messages.messages, system_prompt) for number, messages in rows]

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of the ids, special tokens left out. For people and graders, never to be encoded again."""
        text: str = self._tokenizer.decode(list(token_ids), skip_special_tokens=True)
        return text

    def _row_ids(self, number: int, messages: Sequence[Message], system_prompt: str) -> list[int]:
        try:
            return self.prompt_ids(messages, system_prompt)
        except DatasetError as error:
            raise DatasetError(f"Line {number + 1} of the dataset: {error}") from None


def check_lengths(lengths: Sequence[tuple[int, int]], context_length: int, max_tokens: int) -> None:
    """Check that every prompt leaves room for a completion of ``max_tokens``.

    Args:
        lengths: (line of the file counted from 0, tokens of its prompt) of every row that will be used.
        context_length: longest prompt plus completion, in tokens.

    Raises:
        DatasetError: names the first lines that do not fit, their token counts and what to do.
    """
    room = context_length - max_tokens
    too_long = [(number, tokens) for number, tokens in lengths if tokens > room]
    if not too_long:
        return
    shown = ", ".join(f"line {number + 1} ({tokens} tokens)" for number, tokens in too_long[:SHOWN_LINES])
    more = f" and {len(too_long) - SHOWN_LINES} more" if len(too_long) > SHOWN_LINES else ""
    longest = max(tokens for _, tokens in too_long)
    if longest < context_length:
        advice = f"Shorten these prompts or lower the completion limit to {context_length - longest}."
    else:
        advice = "Shorten these prompts or choose a base model with a longer context."
    raise DatasetError(
        f"{len(too_long)} of {len(lengths)} prompts are longer than the {room} tokens that the context of "
        f"{context_length} leaves beside completions of up to {max_tokens}: {shown}{more}. {advice}"
    )


def _end_of_turn_ids(model_dir: Path, eos_token_id: int | None) -> frozenset[int]:
    ids = set() if eos_token_id is None else {eos_token_id}
    generation = model_dir / "generation_config.json"
    if generation.is_file():
        configured = json.loads(generation.read_text()).get("eos_token_id")
        if configured is not None:
            ids.update(configured if isinstance(configured, list) else [configured])
    return frozenset(ids)
