"""Rendering of chats with a real tokenizer and template."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from engine.chat import ChatRenderer, check_lengths
from engine.data import DatasetError
from engine.spec import DatasetRow, Message


@pytest.fixture(scope="module")
def renderer(tiny_model: Path) -> ChatRenderer:
    return ChatRenderer(tiny_model)


def user(text: str) -> Message:
    return Message(role="user", content=text)


def text_of(renderer: ChatRenderer, ids: list[int]) -> str:
    return renderer._tokenizer.decode(ids)


def test_the_prompt_ends_with_the_opening_of_the_assistants_turn(renderer: ChatRenderer) -> None:
    ids = renderer.prompt_ids([user("Add 1 and 2.")])
    assert text_of(renderer, ids) == "<|im_start|>user\nAdd 1 and 2.<|im_end|>\n<|im_start|>assistant\n"


def test_the_system_prompt_comes_first_unless_the_row_has_its_own(renderer: ChatRenderer) -> None:
    ids = renderer.prompt_ids([user("Hi")], "Be brief.")
    assert text_of(renderer, ids).startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi")
    own = [Message(role="system", content="Be kind."), user("Hi")]
    assert renderer.prompt_ids(own, "Be brief.") == renderer.prompt_ids(own)
    assert "Be brief." not in text_of(renderer, renderer.prompt_ids(own, "Be brief."))


def test_earlier_turns_are_kept_in_order(renderer: ChatRenderer) -> None:
    chat = [user("one"), Message(role="assistant", content="two"), user("three")]
    text = text_of(renderer, renderer.prompt_ids(chat))
    assert text.index("one") < text.index("assistant\ntwo") < text.index("three")


def test_decode_leaves_special_tokens_out(renderer: ChatRenderer) -> None:
    (end,) = renderer.end_of_turn_ids
    ids = renderer._tokenizer.encode("It is 46.", add_special_tokens=False)
    assert renderer.decode([*ids, end]) == "It is 46."


def test_end_of_turn_ids_join_tokenizer_and_generation_config(tiny_model: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    eos = ChatRenderer(tiny_model)._tokenizer.eos_token_id
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [eos, 0]}))
    assert ChatRenderer(folder).end_of_turn_ids == {eos, 0}


def test_a_chat_the_template_refuses_is_named_by_line(tiny_model: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    template = folder / "chat_template.jinja"
    template.write_text(
        "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
        + template.read_text()
    )
    rows = [
        (0, DatasetRow(messages=[user("fine")])),
        (4, DatasetRow(messages=[Message(role="system", content="no"), user("x")])),
    ]
    with pytest.raises(DatasetError, match=r"Line 5 of the dataset: .*System role not supported"):
        ChatRenderer(folder).render(rows)
    assert len(ChatRenderer(folder).render(rows[:1])) == 1


def test_prompts_that_just_fit_pass() -> None:
    check_lengths([(0, 192), (1, 10)], context_length=256, max_tokens=64)


def test_prompts_that_do_not_fit_are_named_with_what_to_do() -> None:
    lengths = [(line, 193 if line % 2 else 20) for line in range(20)]
    with pytest.raises(DatasetError) as caught:
        check_lengths(lengths, context_length=256, max_tokens=64)
    message = str(caught.value)
    assert message.startswith("10 of 20 prompts are longer than the 192 tokens")
    assert "line 2 (193 tokens), line 4 (193 tokens)" in message and "and 5 more" in message
    assert "lower the completion limit to 63" in message


def test_a_prompt_longer_than_the_context_cannot_be_helped_by_shorter_completions() -> None:
    with pytest.raises(DatasetError, match="choose a base model with a longer context"):
        check_lengths([(0, 300)], context_length=256, max_tokens=64)


def test_loading_needs_no_torch(tiny_model: Path) -> None:
    code = (
        "import sys; from engine.chat import ChatRenderer; from engine.spec import Message;"
        f"ChatRenderer({str(tiny_model)!r}).prompt_ids([Message(role='user', content='x')]);"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
