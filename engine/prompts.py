"""The dataset of a job, checked and rendered: what it draws from."""

from __future__ import annotations

from dataclasses import dataclass

from engine.chat import chat_renderer, check_lengths
from engine.data import NumberedRow, load_dataset
from engine.environments.factory import generate_rows, prompt_instructions, turn_roles
from engine.spec import JobSpec


@dataclass(frozen=True)
class Prompts:
    """Rows with their token ids."""

    train: list[NumberedRow]
    train_ids: list[list[int]]
    held_out: list[NumberedRow]
    """At most ``evaluation.max_rows``."""
    held_out_ids: list[list[int]]


def load_prompts(spec: JobSpec, model_dir: str) -> Prompts:
    """Read, check and render a job's dataset; takes seconds, so call it in a thread.

    Raises:
        DatasetError: the file is not what the spec says, a prompt does not fit the context, or the environment cannot
            be played with this base model.
    """
    dataset = load_dataset(spec.dataset) if spec.dataset else generate_rows(spec.environment)
    renderer = chat_renderer(model_dir)
    renderer.check_turns(turn_roles(spec.environment))
    system_prompt, instructions = spec.environment.system_prompt, prompt_instructions(spec.environment)
    held_out = dataset.held_out[: spec.evaluation.max_rows]
    prompts = Prompts(
        dataset.train,
        renderer.render(dataset.train, system_prompt, instructions),
        held_out,
        renderer.render(held_out, system_prompt, instructions),
    )
    rows = zip(prompts.train + prompts.held_out, prompts.train_ids + prompts.held_out_ids, strict=True)
    lengths = [(line, len(ids)) for (line, _), ids in rows]
    check_lengths(lengths, spec.base_model.context_length, spec.sampling.max_tokens)
    return prompts
