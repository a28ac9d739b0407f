"""Tools: calls as models write them, the calculator's limits, and search."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
from pathlib import Path

import pytest

from engine.data import DatasetError
from engine.environments.factory import Environments, prompt_instructions
from engine.environments.files import Document, TenantFiles
from engine.environments.protocol import EpisodeError, TurnMessage
from engine.environments.tools.calculator import calculate
from engine.environments.tools.calls import MalformedCall, ToolCall, parse_calls
from engine.environments.tools.protocol import ToolError
from engine.environments.tools.search import Index
from engine.sandbox.pool import SandboxPool
from engine.spec import SingleTurn, Tools
from tests.engine.environments.playing import CALL, ROW, job

# --- calls ---

GOOD = ToolCall("calculator", {"expression": "1+1"})


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("The answer is 42.", []),
        ('<tool_call>\n{"name": "calculator", "arguments": {"expression": "1+1"}}\n</tool_call>', [GOOD]),
        ('I add. <tool_call>{"name": "calculator", "arguments": {"expression": "1+1"}}</tool_call> Wait.', [GOOD]),
        ('<tool_call>{"name": "calculator", "arguments": {"expression": "1+1"}}', [GOOD]),
        ('<tool_call>{"name": "calculator", "arguments": "{\\"expression\\": \\"1+1\\"}"}</tool_call>', [GOOD]),
        ('```json\n{"name": "calculator", "arguments": {"expression": "1+1"}}\n```', [GOOD]),
        ('Let me see.\n```tool_call\n{"name": "calculator", "arguments": {"expression": "1+1"}}\n```\n', [GOOD]),
        ('{"name": "calculator", "parameters": {"expression": "1+1"}}', [GOOD]),
        ('<tool_call>{"name": "now"}</tool_call>', [ToolCall("now", {})]),
        ('```json\n{"answer": 42}\n```', []),
        ('{"name": "Ada", "born": 1815}', []),
        ("```python\nprint(1)\n```", []),
        ("A set {1, 2} and {x}", []),
    ],
)
def test_calls_are_read_in_every_form(text: str, calls: list[ToolCall]) -> None:
    assert parse_calls(text) == calls


def test_several_calls_come_in_order() -> None:
    one, two = (f'{{"name": "calculator", "arguments": {{"expression": "{n}"}}}}' for n in (1, 2))
    expected = [ToolCall("calculator", {"expression": "1"}), ToolCall("calculator", {"expression": "2"})]
    assert parse_calls(f"<tool_call>{one}</tool_call>\n<tool_call>{two}</tool_call>") == expected
    assert parse_calls(f"<tool_call>{one}<tool_call>{two}</tool_call>") == expected
    assert parse_calls(f"```json\n{one}\n```\nand\n```json\n{two}\n```") == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("<tool_call>calculator(1+1)</tool_call>", "not valid JSON"),
        ('<tool_call>{"arguments": {}}</tool_call>', "has no name"),
        ('<tool_call>["calculator"]</tool_call>', "has no name"),
        (
            '<tool_call>{"name": "calculator", "arguments": "1+1"}</tool_call>',
            "arguments of the call of calculator are no",
        ),
        ('```json\n{"name": "calculator", "arguments": {"expression": "1+1",}}\n```', "not valid JSON"),
        ("<tool_call>" + "[" * 100_000 + "</tool_call>", "not valid JSON"),
    ],
)
def test_a_malformed_call_is_told_apart_from_an_answer(text: str, says: str) -> None:
    (call,) = parse_calls(text)
    assert isinstance(call, MalformedCall)
    assert says in call.problem and "<tool_call>{" in call.problem


# --- calculator ---


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("6*7", "42"),
        (" (3 + 4) * 2 ** 5 ", "224"),
        ("2^10", "1024"),
        ("7 // 2 - 7 % 4", "0"),
        ("1/4", "0.25"),
        ("0.1 + 0.2", "0.3"),
        ("-3 - -4", "1"),
        ("sqrt(2)*sqrt(2)", "2"),
        ("max(1, 2, abs(-3))", "3"),
        ("round(pi, 2)", "3.14"),
        ("2**-1", "0.5"),
        ("12\u00d73", "36"),
        ("10**30", "1" + "0" * 30),
        ("gcd(12, 18)", "6"),
        ("round(2.5)", "2"),
        ("-" * 200 + "1", "1"),
    ],
)
def test_arithmetic(expression: str, value: str) -> None:
    assert calculate(expression) == value


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "6 *",
        "1/0",
        "x + 1",
        "True + 1",
        "'a' * 3",
        "[1][0]",
        "(1).real",
        "__import__('os').system('id')",
        "max.__class__",
        "exp(1, base=2)",
        "(lambda: 1)()",
        "9**9**9**9",
        "2**100000",
        "(10**300)**10 * 10**3000",
        "1e308 * 10",
        "exp(10000)",
        "(-8)**0.5",
        "sqrt(-1)",
        "round(1, -10**9)",
        "1" * 501,
        "(" * 250 + ")" * 250,
        "log(0)",
        "\x00",
        "1 if 1 else 2",
    ],
)
def test_what_is_no_arithmetic_or_too_much_is_refused_at_once(expression: str) -> None:
    with pytest.raises(ToolError):
        calculate(expression)


# --- search ---

DOCUMENTS = [
    Document(title="Cats", text="A cat sleeps. A cat purrs."),
    Document(title="Dogs", text="A dog barks at a cat."),
    Document(text="Nothing of that kind."),
]


def test_search_scores_are_bm25() -> None:
    """Worked out by hand: lengths 7, 7 and 4, mean 6; ``cat`` in 2 of 3 documents; k1 = 1.2, b = 0.75."""
    (first, best), (second, other) = Index(DOCUMENTS).search("cat", 5)
    idf = math.log(1 + (3 - 2 + 0.5) / (2 + 0.5))
    norm = 1.2 * (0.25 + 0.75 * 7 / 6)
    assert (best.title, other.title) == ("Cats", "Dogs")
    assert first == pytest.approx(idf * 2 * 2.2 / (2 + norm))
    assert second == pytest.approx(idf * 1 * 2.2 / (1 + norm))


def test_search_finds_only_what_has_a_word_of_the_query() -> None:
    index = Index(DOCUMENTS)
    assert [document.title for _, document in index.search("BARKS, purrs", 1)] == ["Cats"]
    assert index.search("zebra", 3) == []
    assert Index([]).search("cat", 3) == []


# --- the environment ---


async def reply(settings: Tools, text: str, metadata: dict | None = None, folder: Path | None = None):
    environment = await Environments(folder, False).get(job(settings))
    episode = await environment.start(ROW.model_copy(update={"metadata": metadata or {}}), 0)
    return await episode.reply(text)


async def test_a_call_is_answered_and_an_answer_ends_the_episode() -> None:
    observation = await reply(Tools(), CALL)
    assert observation.messages == [TurnMessage("tool", "42")]
    assert (observation.done, observation.parts) == (False, {"tool_calls": 1, "malformed_calls": 0})
    assert (await reply(Tools(), "It is 42.")).done


@pytest.mark.parametrize(
    ("text", "says", "malformed"),
    [
        ("<tool_call>{</tool_call>", "Error: The tool call is not valid JSON", 1),
        ('<tool_call>{"name": "python"}</tool_call>', "Error: There is no tool 'python'; there is calculator.", 1),
        ('<tool_call>{"name": "search"}</tool_call>', "Error: There is no tool 'search'; there is calculator.", 1),
        (
            '<tool_call>{"name": "calculator", "arguments": {"expr": "1"}}</tool_call>',
            "Error: The arguments of calculator are wrong: 'expression' is a required property.",
            1,
        ),
        (
            '<tool_call>{"name": "calculator", "arguments": {"expression": 1}}</tool_call>',
            "Error: The arguments of calculator are wrong: 1 is not of type 'string'.",
            1,
        ),
        (CALL.replace("6*7", "1/0"), "Error: '1/0' cannot be computed: division by zero", 0),
    ],
)
async def test_what_is_wrong_with_a_call_is_said_and_counted(text: str, says: str, malformed: int) -> None:
    observation = await reply(Tools(), text)
    assert observation.messages[0].content.startswith(says)
    assert not observation.done
    assert observation.parts["malformed_calls"] == malformed


async def test_a_flood_of_calls_is_answered_in_part() -> None:
    observation = await reply(Tools(), CALL * 20)
    assert [message.content for message in observation.messages] == ["42"] * 8 + [
        "Error: only the first 8 calls of a reply are answered."
    ]


# --- Python ---


@pytest.fixture
async def sandbox():
    pool = SandboxPool(2)
    yield pool
    await pool.close()


async def run(sandbox: SandboxPool, code: str) -> str:
    environments = Environments(None, False, lambda: sandbox)
    episode = await (await environments.get(job(Tools(tools=["python"])))).start(ROW, 0)
    call = json.dumps({"name": "python", "arguments": {"code": code}})
    observation = await episode.reply(f"<tool_call>{call}</tool_call>")
    assert not observation.done and observation.parts == {"tool_calls": 1, "malformed_calls": 0}
    return observation.messages[0].content


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("print(6 * 7)", "42"),
        ("x = 6\nx * 7", "42"),
        ("def double(n):\n    return 2 * n\ndouble(21)", "42"),
        ("import sympy\nsympy.factorint(42)", "{2: 1, 3: 1, 7: 1}"),
        ("import sys\nprint('so far')\nsys.exit(3)", "so far"),
        ("x = 1", "(nothing was printed)"),
    ],
)
async def test_a_program_is_answered_with_what_it_prints(sandbox: SandboxPool, code: str, says: str) -> None:
    assert await run(sandbox, code) == says


async def test_what_is_wrong_with_a_program_is_said_with_its_line(sandbox: SandboxPool) -> None:
    said = await run(sandbox, "x = 1\ny = x / 0\n")
    assert 'File "program", line 2' in said and said.endswith("ZeroDivisionError: division by zero")
    assert "SyntaxError" in await run(sandbox, "print(")
    assert (await run(sandbox, "while True: pass")).startswith("Error: the program was stopped: timed out after 5 s")
    assert "PermissionError" in await run(sandbox, "open('/etc/passwd')") or "FileNotFoundError" in await run(
        sandbox, "open('/etc/passwd')"
    )


async def test_no_program_sees_what_another_has_left(sandbox: SandboxPool) -> None:
    await run(sandbox, "import builtins\nbuiltins.left = 1\nkept = 2")
    said = await asyncio.gather(*(run(sandbox, f"print({n})\nkept, left") for n in range(4)))
    assert all(answer.endswith("NameError: name 'kept' is not defined") for answer in said)
    assert [answer.splitlines()[0] for answer in said] == ["0", "1", "2", "3"]


async def test_without_a_sandbox_the_episode_ends_and_says_why() -> None:
    with pytest.raises(EpisodeError, match="python cannot be used here"):
        await run(SandboxPool(2, level="none"), "1")


SEARCH = '<tool_call>{"name": "search", "arguments": {"query": "cat"}}</tool_call>'


async def test_search_finds_the_rows_and_the_uploaded_documents(tmp_path: Path) -> None:
    content = "\n".join(document.model_dump_json() for document in DOCUMENTS).encode()
    digest = hashlib.sha256(content).hexdigest()
    path = tmp_path / "acme" / "documents" / f"{digest}.jsonl"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    settings = Tools(tools=["search"], documents_sha256=digest)
    (message,) = (await reply(settings, SEARCH, {"documents": ["The cat and the hat."]}, tmp_path)).messages
    assert message.content.startswith("[1] ")
    assert "The cat and the hat." in message.content and "Cats\nA cat sleeps." in message.content
    (message,) = (await reply(settings, SEARCH.replace("cat", "zebra"), None, tmp_path)).messages
    assert message.content == "Nothing was found; try other words."

    with pytest.raises(DatasetError, match="are not there"):
        await Environments(tmp_path, False).get(job(settings).model_copy(update={"tenant_id": "rival"}))
    path.write_bytes(content + b"\n")
    with pytest.raises(DatasetError, match="were changed after they were uploaded") as caught:
        await Environments(tmp_path, False).get(job(settings))
    assert hashlib.sha256(content + b"\n").hexdigest() not in str(caught.value)


async def test_a_long_document_is_shown_around_the_words_found() -> None:
    text = "x " * 2000 + "the cat sat " + "y " * 2000
    (message,) = (await reply(Tools(tools=["search"]), SEARCH, {"documents": [{"text": text}]})).messages
    assert "the cat sat" in message.content and len(message.content) < 1100


async def test_documents_of_a_row_that_are_none_end_its_episodes() -> None:
    with pytest.raises(EpisodeError, match="no list of texts or of objects with a text"):
        await reply(Tools(tools=["search"]), SEARCH, {"documents": [{"body": "x"}]})


@pytest.mark.parametrize("tenant", ["../acme", "..", "a/b", ""])
def test_no_tenant_id_leads_out_of_the_folder(tmp_path: Path, tenant: str) -> None:
    (tmp_path / "tokens").mkdir()
    (tmp_path / "tokens" / "key").write_text("secret")
    with pytest.raises(DatasetError, match="no usable token"):
        TenantFiles(tmp_path / "x", tenant).token("key")


def test_the_system_message_describes_the_tools() -> None:
    text = prompt_instructions(Tools(tools=["calculator", "search"]))
    described = [json.loads(line) for line in text.splitlines() if line.startswith('{"type"')]
    assert [tool["function"]["name"] for tool in described] == ["calculator", "search"]
    assert all(tool["function"]["parameters"]["type"] == "object" for tool in described)
    assert parse_calls(text.splitlines()[-1].replace('"..."', '"x"').replace("{...}", "{}")) == [ToolCall("x", {})]
    assert prompt_instructions(SingleTurn()) == ""
