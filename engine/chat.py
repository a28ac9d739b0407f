"""Rendering of chats to token ids, once: token ids go to the rollout and the trainer, text only to people and graders.

The model's own chat template is used as it is. Where neither the row nor the environment gives a system message, some
templates put in a default one (SmolLM2: "You are a helpful AI assistant named SmolLM, ..."). It stays: the model was
tuned with it, and any client that renders with the same template sends it too, so the adapter is trained on the
prompts it will be served. Setting the environment's system prompt replaces it.

In an episode of several turns the prompt is rendered once; what follows each reply of the model is rendered and
tokenised once, as the delta from its end-of-turn token to the opening of its next turn (``turn_ids``). That is what the
template itself would give only if it leaves earlier turns as they were, so a template that rewrites them is refused
before the job starts (``check_turns``).

No torch here: loading takes a second or two, not ten.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

import jinja2
from transformers import PreTrainedTokenizerFast

from engine.data import DatasetError, NumberedRow
from engine.environments.protocol import Role, TurnMessage
from engine.spec import Message

SHOWN_LINES = 5

DUMMY_USER = {"role": "user", "content": "First question."}
DUMMY_REPLY = "Plain answer."
DUMMY_REPLIES = [DUMMY_REPLY, "<think>\nA thought.\n</think>\n\nAnswer."]
"""Some templates take the thoughts out of earlier turns."""


class TemplateError(DatasetError):
    """The base model's chat template cannot be used for episodes of several turns; the message is for the tenant."""


class ChatRenderer:
    """Chat template and tokenizer of one prepared base model."""

    def __init__(self, model_dir: str | Path) -> None:
        self._tokenizer = PreTrainedTokenizerFast.from_pretrained(str(model_dir), local_files_only=True)
        self.end_of_turn_ids: frozenset[int] = _end_of_turn_ids(Path(model_dir), self._tokenizer.eos_token_id)
        """Ids that end the model's turn: the tokenizer's and those of generation_config.json."""
        self._takes_tool_role = self._try_tool_role()

    def prompt_ids(self, messages: Sequence[Message], system_prompt: str = "", instructions: str = "") -> list[int]:
        """Token ids of the chat, up to and including the opening of the assistant's turn.

        Args:
            system_prompt: put before the messages unless they start with a system message of their own.
            instructions: the environment's; put at the end of the system message, whoever gives that.

        Raises:
            DatasetError: the template refuses the chat, e.g. roles in an order it does not know.
        """
        chat = [{"role": message.role, "content": message.content} for message in messages]
        if system_prompt and chat[0]["role"] != "system":
            chat.insert(0, {"role": "system", "content": system_prompt})
        if instructions and chat[0]["role"] == "system":
            chat[0]["content"] += f"\n\n{instructions}"
        elif instructions:
            chat.insert(0, {"role": "system", "content": instructions})
        try:
            ids: list[int] = self._tokenizer.apply_chat_template(
                chat, add_generation_prompt=True, tokenize=True, return_dict=False
            )
        except jinja2.TemplateError as error:
            raise DatasetError(f"The model's chat template refuses the messages: {error}.") from None
        return ids

    def render(self, rows: Sequence[NumberedRow], system_prompt: str = "", instructions: str = "") -> list[list[int]]:
        """``prompt_ids`` of every row, in order. A DatasetError names the line."""
        return [self._row_ids(number, row.messages, system_prompt, instructions) for number, row in rows]

    def turn_ids(self, messages: Sequence[TurnMessage]) -> list[int]:
        """Token ids of the environment's messages: from after the end-of-turn token that ends the model's reply, to the
        opening of its next turn.

        Raises:
            TemplateError: the template does not take such a turn.
        """
        text = self._turn_text(messages)
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        end = next((place for place, token in enumerate(ids) if token in self.end_of_turn_ids), None)
        if end is None or self._tokenizer.decode(ids[:end]).strip():
            raise TemplateError(
                "The base model's chat template does not end the model's turn with one of its end-of-turn tokens, so "
                "what follows it is unknown. Choose another base model or a single turn."
            )
        return ids[end + 1 :]

    def check_turns(self, roles: Iterable[Role]) -> None:
        """Check that earlier turns stay as they were when the environment answers in these roles.

        Raises:
            TemplateError: says what the template does to them.
        """
        for role in sorted(roles):
            first, second = (TurnMessage(role, f"{word} observation.") for word in ("First", "Second"))
            self.turn_ids([first])
            for reply in DUMMY_REPLIES:
                turn = {"role": "assistant", "content": reply}
                chat = [DUMMY_USER, turn, *self._chat([first]), turn, *self._chat([second])]
                expected = "".join(
                    [self._text([DUMMY_USER]), reply, self._turn_text([first]), reply, self._turn_text([second])]
                )
                if self._text(chat) != expected:
                    what = "the model's thoughts" if reply != DUMMY_REPLY else "the model's replies"
                    raise TemplateError(
                        f"The base model's chat template rewrites earlier turns: {what} do not stay in the chat once a "
                        f"{role} message follows, so what was trained would not be what is served. Choose another base "
                        "model or a single turn."
                    )

    def _turn_text(self, messages: Sequence[TurnMessage]) -> str:
        """What the template puts between a reply of the model and its next one."""
        before = self._text([DUMMY_USER]) + DUMMY_REPLY
        turn = {"role": "assistant", "content": DUMMY_REPLY}
        text = self._text([DUMMY_USER, turn, *self._chat(messages)])
        if not text.startswith(before):
            raise TemplateError(
                "The base model's chat template rewrites a reply of the model once a message follows it, so what was "
                "trained would not be what is served. Choose another base model or a single turn."
            )
        return text[len(before) :]

    def _chat(self, messages: Sequence[TurnMessage]) -> list[dict[str, str]]:
        if self._takes_tool_role:
            return [{"role": message.role, "content": message.content} for message in messages]
        contents = [
            f"<tool_response>\n{message.content}\n</tool_response>" if message.role == "tool" else message.content
            for message in messages
        ]
        # One message: many templates take the user's and the model's in turn only.
        return [{"role": "user", "content": "\n".join(contents)}]

    def _try_tool_role(self) -> bool:
        """Whether tools' results have a role of their own. Some templates that say nothing of tools would put any role
        in, which the model never saw; some drop it; some want identifiers that only native calls have."""
        if "tool" not in str(self._tokenizer.chat_template):
            return False
        result = {"role": "tool", "content": "A result."}
        try:
            return "A result." in self._text([DUMMY_USER, {"role": "assistant", "content": DUMMY_REPLY}, result])
        except TemplateError:
            return False

    def _text(self, chat: list[dict[str, str]]) -> str:
        try:
            text: str = self._tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        except jinja2.TemplateError as error:
            raise TemplateError(
                f"The base model's chat template refuses an episode of several turns: {error}."
            ) from None
        return text

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of the ids, special tokens left out. For people and graders, never to be encoded again."""
        text: str = self._tokenizer.decode(list(token_ids), skip_special_tokens=True)
        return text

    def _row_ids(self, number: int, messages: Sequence[Message], system_prompt: str, instructions: str) -> list[int]:
        try:
            return self.prompt_ids(messages, system_prompt, instructions)
        except DatasetError as error:
            raise DatasetError(f"Line {number + 1} of the dataset: {error}") from None


_loading = threading.Lock()


def chat_renderer(model_dir: str) -> ChatRenderer:
    """The renderer of a base model, loaded once a process: it takes the better part of a second, and jobs that begin
    together ask together. It may be used from several threads."""
    with _loading:
        return _renderer(model_dir)


@lru_cache(maxsize=4)
def _renderer(model_dir: str) -> ChatRenderer:
    return ChatRenderer(model_dir)


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
