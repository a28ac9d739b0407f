"""Episodes of several turns: what is trained is what was sampled, and every limit ends an episode and nothing else."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import pytest_asyncio

from engine.chat import ChatRenderer
from engine.environments.protocol import EpisodeError, Observation
from engine.environments.timing import StageTimes
from engine.environments.turns import turn_seed
from engine.environments.worker import EnvironmentWorker
from engine.spec import Brevity, EnvironmentReward, ExactMatch, Mix, MixPart, Python, Remote, Tools
from engine.types import Completion, RolloutRequest, Sample, Score
from tests.engine.environments.playing import ADAPTER, CALL, ROW, Model, Scripted, job, play, put_in

ANYWHERE = Remote(url="http://environment.invalid")


@pytest.fixture(scope="module")
def renderer(tiny_model: Path) -> ChatRenderer:
    return ChatRenderer(tiny_model)


@pytest_asyncio.fixture
async def worker(tiny_model: Path) -> AsyncIterator[EnvironmentWorker]:
    worker = EnvironmentWorker(tiny_model, 2, None)  # type: ignore[arg-type]
    yield worker
    await worker.close()


def use(worker: EnvironmentWorker, model: Model) -> Model:
    worker._rollout = model
    return model


# --- tokens ---


async def test_sampled_ids_are_kept_and_the_environments_are_masked(
    worker: EnvironmentWorker, renderer: ChatRenderer
) -> None:
    model = use(worker, Model(renderer, [CALL, "It is 42."]))
    (trajectory,) = (await play(worker, job(Tools()), model)).group.trajectories
    first, second = model.completions[0]
    between = len(trajectory.token_ids) - len(first.token_ids) - len(second.token_ids)
    assert trajectory.token_ids[: len(first.token_ids)] == first.token_ids
    assert trajectory.token_ids[-len(second.token_ids) :] == second.token_ids
    assert trajectory.loss_mask == [True] * len(first.token_ids) + [False] * between + [True] * len(second.token_ids)
    assert trajectory.logprobs == first.logprobs + [0.0] * between + second.logprobs
    assert trajectory.score.total == 1
    assert not trajectory.truncated


async def test_the_whole_episode_is_what_the_template_renders(
    worker: EnvironmentWorker, renderer: ChatRenderer
) -> None:
    """The chat as the model sees it, worked out by hand from the ChatML template."""
    model = use(worker, Model(renderer, [CALL, "It is 42."]))
    group = (await play(worker, job(Tools()), model)).group
    text = renderer._tokenizer.decode(group.prompt_ids + group.trajectories[0].token_ids)
    assert text == (
        "<|im_start|>user\nWhat is 6 * 7?<|im_end|>\n"
        f"<|im_start|>assistant\n{CALL}<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\n42\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\nIt is 42.<|im_end|>"
    )


async def test_ids_that_the_tokenizer_would_not_make_are_kept(
    worker: EnvironmentWorker, renderer: ChatRenderer
) -> None:
    """A model may sample "4" and "2" where the tokenizer merges them; decoding and encoding would lose that."""
    model = use(worker, Model(renderer, ["What is 12?", "It is 46."]))
    put_in(worker, Scripted(lambda text, turn: "go on" if turn == 1 else None))
    letters = [renderer._tokenizer.encode(letter, add_special_tokens=False)[0] for letter in "What is 12?"]
    real = renderer._tokenizer.encode("What is 12?", add_special_tokens=False)
    assert letters != real

    async def letter_by_letter(request: RolloutRequest) -> list[Completion]:
        (completion,) = await model(request)
        if completion.text == "What is 12?":
            ids = [*letters, renderer._tokenizer.eos_token_id]
            completion = Completion(ids, [-1.0] * len(ids), completion.text, "stop", completion.policy)
            model.completions[0][0] = completion
        return [completion]

    worker._rollout = letter_by_letter
    (trajectory,) = (await play(worker, job(ANYWHERE), model)).group.trajectories
    assert trajectory.token_ids[: len(letters)] == letters
    assert model.requests[1].prompt_ids[len(model.requests[0].prompt_ids) :][: len(letters)] == letters


async def test_the_first_turn_is_one_request_and_later_ones_are_each_episodes_own(
    worker: EnvironmentWorker, renderer: ChatRenderer
) -> None:
    model = use(worker, Model(renderer, [CALL, "It is 42."], ["It is 41."], [CALL.replace("6*7", "7*6"), "42"]))
    group = (await play(worker, job(Tools()), model)).group
    assert [request.n for request in model.requests] == [3, 1, 1]
    assert model.requests[0].seed == 99
    assert {request.seed for request in model.requests[1:]} == {turn_seed(99, 0, 1), turn_seed(99, 2, 1)}
    assert len({turn_seed(99, episode, turn) for episode in range(8) for turn in range(1, 9)}) == 64
    assert {request.temperature for request in model.requests} == {0.7}
    assert {request.policy for request in model.requests} == {ADAPTER}
    assert [trajectory.score.total for trajectory in group.trajectories] == [1, 0, 1]
    assert [trajectory.adapter_version for trajectory in group.trajectories] == [3, 3, 3]


# --- limits ---


async def test_a_reply_cut_off_ends_the_episode_as_truncated_and_is_scored(
    worker: EnvironmentWorker, renderer: ChatRenderer
) -> None:
    environment = Scripted(lambda text, turn: "go on")
    put_in(worker, environment)
    model = use(worker, Model(renderer, ["Let me see", "It is 42 ..."]))
    (trajectory,) = (await play(worker, job(ANYWHERE), model)).group.trajectories
    assert trajectory.truncated
    assert trajectory.score.total == 1
    assert trajectory.score.reason == "the reply of turn 2 was cut off at the token limit"
    assert trajectory.score.parts == {"environment_turns": 2, "environment_reward": 0.25}
    assert environment.episodes[0].turn == 1, "the environment was shown half a reply"


async def test_the_limit_of_turns_ends_and_scores_the_episode(
    worker: EnvironmentWorker, renderer: ChatRenderer
) -> None:
    put_in(worker, Scripted(lambda text, turn: "go on"))
    model = use(worker, Model(renderer, ["It is 1.", "It is 2.", "It is 42."]))
    (trajectory,) = (await play(worker, job(ANYWHERE.model_copy(update={"max_turns": 3})), model)).group.trajectories
    assert (trajectory.truncated, trajectory.score.total) == (True, 1)
    assert trajectory.score.reason == "ended by the limit of 3 turns"
    assert trajectory.loss_mask[-1], "nothing follows the last reply"


async def test_the_limit_of_tokens_shortens_the_last_reply_then_ends_the_episode(
    worker: EnvironmentWorker, renderer: ChatRenderer
) -> None:
    put_in(worker, Scripted(lambda text, turn: "go on"))
    model = use(worker, Model(renderer, ["It is 12.", "It is 42."] + ["It is 42."] * 20))
    settings = ANYWHERE.model_copy(update={"max_turns": 50, "max_episode_tokens": 60})
    (trajectory,) = (await play(worker, job(settings, max_tokens=40), model)).group.trajectories
    assert trajectory.truncated and trajectory.score.total == 1
    assert trajectory.score.reason.startswith("ended by the limit of 60 tokens an episode, in turn ")
    assert len(trajectory.token_ids) <= 60
    assert model.requests[0].max_tokens == 40
    for request in model.requests[1:]:
        used = len(request.prompt_ids) - len(model.requests[0].prompt_ids)
        assert request.max_tokens == min(40, 60 - used)


async def test_an_episode_never_outgrows_the_context(worker: EnvironmentWorker, renderer: ChatRenderer) -> None:
    put_in(worker, Scripted(lambda text, turn: "go on and on"))
    model = use(worker, Model(renderer, ["It is 42."] * 40))
    spec = job(ANYWHERE.model_copy(update={"max_turns": 200}), context=120)
    group = (await play(worker, spec, model)).group
    assert len(group.prompt_ids) + len(group.trajectories[0].token_ids) <= 120
    assert all(len(request.prompt_ids) + request.max_tokens <= 120 for request in model.requests)
    assert group.trajectories[0].truncated


# --- environments that fail ---


async def hang(text: str, turn: int) -> None:
    await asyncio.sleep(60)


def die(text: str, turn: int) -> None:
    raise ZeroDivisionError("no way")


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda text, turn: hang(text, turn), "the environment did not answer within 0.2 s"),
        (die, "the environment failed: ZeroDivisionError: no way"),
        (lambda text, turn: "x" * 101, "answer of 101 characters is longer than the limit of 100"),
        (lambda text, turn: Observation([], done=False), "neither ended the episode nor said anything"),
        (lambda text, turn: Observation([], True, {"reward": float("nan")}), "reward is not a finite number"),
        (lambda text, turn: Observation([], True, {"no name": 1.0}), "named a reward part 'no name'"),
        (
            lambda text, turn: Observation([], True, {f"part{n}": 1.0 for n in range(33)}),
            "gave 33 reward parts, more than 32",
        ),
    ],
)
async def test_an_environment_that_fails_ends_its_episode_and_no_other(
    worker: EnvironmentWorker, renderer: ChatRenderer, answer, says: str
) -> None:
    environment = Scripted(lambda text, turn: answer(text, turn) if text == "bad" else None)
    put_in(worker, environment)
    model = use(worker, Model(renderer, ["It is 42."], ["bad"], ["It is 41."]))
    settings = ANYWHERE.model_copy(update={"step_timeout_seconds": 0.2, "max_observation_characters": 100})
    trajectories = (await play(worker, job(settings), model)).group.trajectories
    assert [t.score.error for t in trajectories] == [False, True, False]
    assert [t.score.total for t in trajectories] == [1, 0, 0]
    assert says in trajectories[1].score.reason
    assert trajectories[1].token_ids == model.completions[1][0].token_ids
    assert trajectories[1].score.parts == {"environment_turns": 1}
    await asyncio.gather(*worker._closing)
    assert [episode.closed for episode in environment.episodes] == [1, 1, 1]


async def test_an_episode_that_does_not_open_gets_its_turn_and_an_error(
    worker: EnvironmentWorker, renderer: ChatRenderer
) -> None:
    environment = Scripted(lambda text, turn: None)
    started = iter(range(3))
    start = environment.start

    async def refuse_the_second(row, seed):
        if next(started) == 1:
            raise EpisodeError("full")
        return await start(row, seed)

    environment.start = refuse_the_second  # type: ignore[method-assign]
    put_in(worker, environment)
    model = use(worker, Model(renderer, ["It is 42."], ["It is 43."], ["It is 42."]))
    trajectories = (await play(worker, job(ANYWHERE), model)).group.trajectories
    assert [t.score.reason for t in trajectories if t.score.error] == ["full"]
    assert [t.score.total for t in trajectories] == [1, 0, 1]


async def test_a_close_that_hangs_delays_nobody(worker: EnvironmentWorker, renderer: ChatRenderer) -> None:
    environment = Scripted(lambda text, turn: None)
    put_in(worker, environment)
    released = asyncio.Event()
    model = use(worker, Model(renderer, ["It is 42."]))
    start = environment.start

    async def start_stuck(row, seed):
        episode = await start(row, seed)
        episode.close = released.wait
        return episode

    environment.start = start_stuck  # type: ignore[method-assign]
    assert (await play(worker, job(ANYWHERE), model)).group.trajectories[0].score.total == 1
    assert worker._closing
    released.set()


async def test_cancelling_a_group_cancels_its_turns_and_closes_its_episodes(
    worker: EnvironmentWorker, renderer: ChatRenderer
) -> None:
    stepping, cancelled = asyncio.Event(), asyncio.Event()

    async def answer(text: str, turn: int) -> None:
        stepping.set()
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()

    environment = Scripted(answer)
    put_in(worker, environment)
    group = asyncio.create_task(play(worker, job(ANYWHERE), use(worker, Model(renderer, ["It is 42."]))))
    await stepping.wait()
    group.cancel()
    with pytest.raises(asyncio.CancelledError):
        await group
    assert cancelled.is_set()
    await asyncio.gather(*worker._closing)
    assert environment.episodes[0].closed == 1


async def test_a_failing_rollout_in_a_later_turn_fails_the_group(
    worker: EnvironmentWorker, renderer: ChatRenderer
) -> None:
    put_in(worker, Scripted(lambda text, turn: "go on"))
    model = Model(renderer, ["It is 42."] * 2)

    async def broken(request: RolloutRequest) -> list[Completion]:
        if len(model.requests) == 1:
            raise RuntimeError("no slot")
        return await model(request)

    worker._rollout = broken
    with pytest.raises(RuntimeError, match="no slot"):
        await play(worker, job(ANYWHERE), model)


# --- openings ---


async def test_an_opening_stands_at_the_end_of_the_prompt(worker: EnvironmentWorker, renderer: ChatRenderer) -> None:
    put_in(worker, Scripted(lambda text, turn: None, opening="You are in a cave."))
    model = use(worker, Model(renderer, ["It is 42."], ["no"]))
    group = (await play(worker, job(ANYWHERE.model_copy(update={"system_prompt": "Play."})), model)).group
    assert renderer._tokenizer.decode(group.prompt_ids) == (
        "<|im_start|>system\nPlay.<|im_end|>\n"
        "<|im_start|>user\nWhat is 6 * 7?\n\nYou are in a cave.<|im_end|>\n<|im_start|>assistant\n"
    )
    assert model.requests[0].prompt_ids == group.prompt_ids
    assert group.prompt_text == "What is 6 * 7?\n\nYou are in a cave."


async def test_episodes_of_a_group_that_open_differently_are_errors(
    worker: EnvironmentWorker, renderer: ChatRenderer
) -> None:
    environment = Scripted(lambda text, turn: None, opening="cave")
    start = environment.start

    async def start_differently(row, seed):
        environment.opening = "cave" if len(environment.episodes) != 1 else "wood"
        return await start(row, seed)

    environment.start = start_differently  # type: ignore[method-assign]
    put_in(worker, environment)
    trajectories = (
        await play(worker, job(ANYWHERE), use(worker, Model(renderer, ["42"], ["42"], ["42"])))
    ).group.trajectories
    assert [t.score.error for t in trajectories] == [False, True, False]
    assert "opened the episodes of one group differently" in trajectories[1].score.reason


async def test_an_opening_that_does_not_fit_is_an_error_of_the_episodes(
    worker: EnvironmentWorker, renderer: ChatRenderer
) -> None:
    put_in(worker, Scripted(lambda text, turn: None, opening="cave " * 300))
    group = (await play(worker, job(ANYWHERE), use(worker, Model(renderer, ["42"], ["42"])))).group
    assert all("does not fit the context of 256" in t.score.reason for t in group.trajectories)
    assert group.prompt_ids == renderer.prompt_ids(ROW.messages)


# --- rewards ---


async def test_the_environments_reward_can_be_the_reward(worker: EnvironmentWorker, renderer: ChatRenderer) -> None:
    put_in(worker, Scripted(lambda text, turn: "go on" if turn == 1 else None))
    model = use(worker, Model(renderer, ["one", "two"], ["three ..."]))
    grader = EnvironmentReward(low=-0.5, high=0.75)
    done, cut = (await play(worker, job(ANYWHERE, grader=grader), model)).group.trajectories
    assert done.score.total == pytest.approx((0.5 + 0.5) / 1.25)
    assert done.score.parts == {"environment_reward": 0.5, "environment_turns": 2}
    assert (cut.score.total, cut.score.error) == (0, False)
    assert "the environment gave no part reward in this episode; it gave none" in cut.score.reason


async def test_the_environments_reward_mixes_with_the_tenants(
    worker: EnvironmentWorker, renderer: ChatRenderer
) -> None:
    put_in(worker, Scripted(lambda text, turn: "go on" if turn == 1 else None))
    grader = Mix(
        parts=[
            MixPart(name="own", weight=3, grader=EnvironmentReward()),
            MixPart(name="right", weight=1, grader=ExactMatch()),
        ]
    )
    model = use(worker, Model(renderer, ["7", "42"]))
    (trajectory,) = (await play(worker, job(ANYWHERE, grader=grader), model)).group.trajectories
    assert trajectory.score.parts == {"own": 0.5, "right": 1, "environment_reward": 0.5, "environment_turns": 2}
    assert trajectory.score.total == pytest.approx((3 * 0.5 + 1) / 4)


async def test_graders_may_read_every_turn(worker: EnvironmentWorker, renderer: ChatRenderer) -> None:
    grader = ExactMatch(
        input="{{ sample.turns[0].content }}/{{ sample.turns[1].role }}: {{ sample.turns[1].content }}",
        reference=f"{CALL}/tool: 42",
    )
    model = use(worker, Model(renderer, [CALL, "It is 42."], ["It is 42."]))
    first, second = (await play(worker, job(Tools(), grader=grader), model)).group.trajectories
    assert (first.score.total, first.score.error) == (1, False)
    assert (second.score.total, second.score.error_kind) == (0, "grader")
    assert second.score.reason == "sample.turns[1] is not there"


class CountingSandbox:
    """Scores a group by how many samples it has."""

    def __init__(self) -> None:
        self.groups: list[list[str]] = []

    async def score_batch(self, grader: object, samples: Sequence[Sample], **_: object) -> list[Score]:
        self.groups.append([sample.completion for sample in samples])
        return [Score(1 / len(samples)) for _ in samples]

    async def close(self) -> None:
        pass


async def test_a_batch_function_gets_the_groups_whole_episodes_at_once(
    worker: EnvironmentWorker, renderer: ChatRenderer
) -> None:
    sandbox = CountingSandbox()
    worker._scorer._make_sandbox = lambda: sandbox

    def answer(text: str, turn: int) -> str | None:
        if text == "broken":
            raise EpisodeError("it broke")
        return "go on" if turn == 1 else None

    put_in(worker, Scripted(answer))
    grader = Python(code="def rewards(samples): return [0] * len(samples)", function="rewards", batch=True)
    model = use(worker, Model(renderer, ["1", "7"], ["broken"], ["2", "42"]))
    group = (await play(worker, job(ANYWHERE, grader=grader), model)).group
    assert sandbox.groups == [["7", "42"]]
    assert [t.score.total for t in group.trajectories] == [0.5, 0, 0.5]
    broken = group.trajectories[1].score
    assert (broken.error, broken.error_kind, broken.reason) == (True, "environment", "it broke")


# --- time ---


async def test_spans_tell_when_any_episode_was_in_a_stage(worker: EnvironmentWorker, renderer: ChatRenderer) -> None:
    async def slowly(text: str, turn: int) -> str | None:
        await asyncio.sleep(0.01)
        return "go on" if turn == 1 else None

    put_in(worker, Scripted(slowly))
    model = use(worker, Model(renderer, ["It is 1.", "It is 42."], ["It is 2.", "It is 42."]))
    result = await play(worker, job(ANYWHERE), model)
    rollouts = [span for span in result.spans if span.stage == "rollout"]
    environments = [span for span in result.spans if span.stage == "environment"]
    sampled = sum(sum(trajectory.loss_mask) for trajectory in result.group.trajectories)
    assert sum(span.tokens for span in rollouts) == sampled
    assert rollouts and environments
    for spans in (rollouts, environments):
        assert all(one.end < other.start for one, other in itertools.pairwise(spans))


def test_times_of_a_stage_that_overlap_are_one_span() -> None:
    times = StageTimes()
    for start, end, tokens in [(4, 5, 7), (0, 2, 1), (1, 3, 2), (3, 3.5, 4)]:
        times.add("rollout", start, end, tokens)
    times.add("environment", 2, 9)
    assert [(span.stage, span.start, span.end, span.tokens) for span in times.spans()] == [
        ("rollout", 0, 3.5, 7),
        ("rollout", 4, 5, 7),
        ("environment", 2, 9, 0),
    ]


async def test_thousands_of_slow_episodes_cost_no_thread_each(
    worker: EnvironmentWorker, renderer: ChatRenderer
) -> None:
    """2,000 episodes, each waiting in its environment at the same time as all others."""
    waiting, everyone = 0, asyncio.Event()

    async def slowly(text: str, turn: int) -> None:
        nonlocal waiting
        waiting += 1
        if waiting == 2000:
            everyone.set()
        await everyone.wait()

    put_in(worker, Scripted(slowly))

    async def rollout(request: RolloutRequest) -> list[Completion]:
        ids = [10, renderer._tokenizer.eos_token_id]
        return [Completion(ids, [-1.0, -1.0], "x", "stop", request.policy.name) for _ in range(request.n)]

    worker._rollout = rollout
    spec = job(ANYWHERE.model_copy(update={"step_timeout_seconds": 120}), grader=Brevity(target=1, limit=2))
    await worker._get_renderer()
    before = threading.active_count()
    prompt = renderer.prompt_ids(ROW.messages)
    groups = [asyncio.create_task(worker.run_group(spec, ADAPTER, 0, ROW, prompt, 8, 1.0, n)) for n in range(250)]
    await everyone.wait()
    assert threading.active_count() <= before + 1
    results = await asyncio.gather(*groups)
    assert all(t.score.total == 1 and not t.score.error for r in results for t in r.group.trajectories)
    assert sum(len(result.group.trajectories) for result in results) == 2000
