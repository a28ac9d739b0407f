"""Rendering of chats with a real tokenizer and template."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from engine.chat import ChatRenderer, TemplateError, chat_renderer, check_lengths
from engine.data import DatasetError
from engine.environments.protocol import TurnMessage
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


# --- episodes of several turns ---

CHATML_WITH_TOOLS = (
    "{% for message in messages %}"
    "{% if message.role == 'tool' %}"
    "{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}"
    "{{ '\n<tool_response>\n' + message.content + '\n</tool_response>' }}"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}"
    "{% else %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""In the manner of Qwen 2.5: results of tools in a row share a user's turn."""

STRIPS_THOUGHTS = (
    "{% set last = namespace(query=0) %}"
    "{% for message in messages if message.role == 'user' %}{% set last.query = messages.index(message) %}{% endfor %}"
    "{% for message in messages %}"
    "{% set content = message.content %}"
    "{% if message.role == 'assistant' and loop.index0 < last.query %}"
    "{% set content = content.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "{{ '<|im_start|>' + message.role + '\n' + content + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    "{# tool #}"
)
"""In the manner of Qwen 3: thoughts go once the user speaks again, and stay while only tools do."""


def with_template(model: Path, tmp_path: Path, template: str) -> ChatRenderer:
    folder = shutil.copytree(model, tmp_path / "model")
    (folder / "chat_template.jinja").write_text(template)
    return ChatRenderer(folder)


def test_a_turn_runs_from_the_end_of_a_reply_to_the_opening_of_the_next(renderer: ChatRenderer) -> None:
    ids = renderer.turn_ids([TurnMessage("user", "And 2 + 2?")])
    assert text_of(renderer, ids) == "\n<|im_start|>user\nAnd 2 + 2?<|im_end|>\n<|im_start|>assistant\n"
    chat = [user("1 + 1?"), Message(role="assistant", content="It is 2."), user("And 2 + 2?")]
    reply = renderer._tokenizer.encode("It is 2.<|im_end|>", add_special_tokens=False)
    assert renderer.prompt_ids(chat) == renderer.prompt_ids(chat[:1]) + reply + ids


def test_a_template_that_knows_no_tools_gets_their_results_as_the_users(renderer: ChatRenderer) -> None:
    ids = renderer.turn_ids([TurnMessage("tool", "4"), TurnMessage("tool", "5")])
    assert text_of(renderer, ids) == (
        "\n<|im_start|>user\n<tool_response>\n4\n</tool_response>\n<tool_response>\n5\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_a_template_that_knows_tools_gets_their_results_as_such(tiny_model: Path, tmp_path: Path) -> None:
    knowing = with_template(tiny_model, tmp_path, CHATML_WITH_TOOLS)
    knowing.check_turns({"tool", "user"})
    ids = knowing.turn_ids([TurnMessage("tool", "4"), TurnMessage("tool", "5")])
    assert text_of(knowing, ids) == (
        "\n<|im_start|>user\n<tool_response>\n4\n</tool_response>\n<tool_response>\n5\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


@pytest.mark.parametrize(
    "template",
    [
        CHATML_WITH_TOOLS.replace("{{ '\n<tool_response>\n' + message.content + '\n</tool_response>' }}", ""),
        CHATML_WITH_TOOLS.replace(
            "{% for", "{% if messages[-1].role == 'tool' %}{{ raise_exception('id') }}{% endif %}{% for", 1
        ),
    ],
)
def test_a_template_that_drops_or_refuses_tools_gets_their_results_as_the_users(
    tiny_model: Path, tmp_path: Path, template: str
) -> None:
    renderer = with_template(tiny_model, tmp_path, template)
    assert "<|im_start|>user\n<tool_response>\n4\n" in text_of(renderer, renderer.turn_ids([TurnMessage("tool", "4")]))


def test_the_tiny_models_template_is_stable(renderer: ChatRenderer) -> None:
    renderer.check_turns({"user", "tool"})
    renderer.check_turns(set())


def test_a_template_that_takes_thoughts_out_of_old_turns_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    renderer = with_template(tiny_model, tmp_path, STRIPS_THOUGHTS)
    renderer.check_turns({"tool"})
    with pytest.raises(TemplateError, match="rewrites earlier turns: the model's thoughts do not stay"):
        renderer.check_turns({"user"})


@pytest.mark.parametrize(
    ("template", "says"),
    [
        (
            "{% for message in messages[-1:] %}{{ message.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n",
            "rewrites a reply",
        ),
        (
            "{% for message in messages %}{{ message.content | upper }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n",
            "rewrites a reply",
        ),
        (
            "{% for message in messages %}{{ message.role + ': ' + message.content + '\n' }}{% endfor %}assistant: ",
            "does not end the model's turn",
        ),
        (
            "{% for message in messages %}{{ message.content }}<|im_end|>\n{% endfor %}"
            "{{ messages | length }}<|im_start|>assistant\n",
            "rewrites",
        ),
        (
            "{% if messages | length > 1 %}{{ raise_exception('one message only') }}{% endif %}"
            "{{ messages[0].content }}<|im_end|>\n<|im_start|>assistant\n",
            "refuses an episode of several turns: one message only",
        ),
    ],
)
def test_a_template_that_cannot_carry_turns_is_refused(
    tiny_model: Path, tmp_path: Path, template: str, says: str
) -> None:
    with pytest.raises(TemplateError, match=says):
        with_template(tiny_model, tmp_path, template).check_turns({"user"})


def test_instructions_end_the_system_message_whoever_gives_it(renderer: ChatRenderer) -> None:
    def system(*args: str, messages: list[Message]) -> str:
        return text_of(renderer, renderer.prompt_ids(messages, *args)).split("<|im_end|>")[0]

    own = [Message(role="system", content="Be kind."), user("Hi")]
    assert system("", "Use tools.", messages=[user("Hi")]) == "<|im_start|>system\nUse tools."
    assert system("Be brief.", "Use tools.", messages=[user("Hi")]) == "<|im_start|>system\nBe brief.\n\nUse tools."
    assert system("Be brief.", "Use tools.", messages=own) == "<|im_start|>system\nBe kind.\n\nUse tools."


def test_threads_share_a_renderer(tiny_model):
    def render(number: int) -> tuple[ChatRenderer, list[int]]:
        shared = chat_renderer(str(tiny_model))
        return shared, shared.prompt_ids([Message(role="user", content=f"How much is {number} + 1?")])

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(render, range(200)))
    assert len({id(shared) for shared, _ in found}) == 1
    own = ChatRenderer(tiny_model)
    for number, (_, ids) in enumerate(found):
        assert ids == own.prompt_ids([Message(role="user", content=f"How much is {number} + 1?")])
