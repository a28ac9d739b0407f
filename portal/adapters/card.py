"""The model card of an adapter version: what it is, where it comes from, how well it does, and code that uses it.

In the form Hugging Face reads (YAML between two lines of dashes, then Markdown), as README.md of the archive.
"""

from __future__ import annotations

import json
from typing import Any

from portal.adapters.models import AdapterVersion
from portal.adapters.snippets import render_generate, render_merge, render_serve
from portal.progress.models import EvaluationRecord, StepRecord

WEIGHTS = "adapter_model.safetensors"
SHOWN_METRICS = {
    "reward_mean": "mean reward",
    "accuracy": "accuracy",
    "completion_tokens_mean": "completion length, tokens",
    "entropy": "entropy, nats",
    "kl": "KL to the base model, nats",
}
"""Of the batch that trained it, as the card names them."""


def render_card(adapter: AdapterVersion) -> str:
    job = adapter.job
    return "\n".join(
        [
            "---",
            f"base_model: {json.dumps(job.base_model.location)}",
            "library_name: peft",
            "pipeline_tag: text-generation",
            f"tags: [lora, reinforcement-learning, {job.spec['training'].get('algorithm', 'grpo')}]",
            "---",
            "",
            f"# {adapter.name}",
            "",
            f"LoRA adapter (rank {adapter.rank}) of {job.base_model_id}, trained with reinforcement learning from "
            "verifiable rewards.",
            "",
            *_section("Where it comes from", _origin(adapter)),
            *_section("How well it does", _results(adapter) or [("", "No step of it was reported.")]),
            *_section("Settings", _settings(job.spec)),
            "## Use",
            "",
            "In the folder this file is in, with PEFT:",
            "",
            *_code("python", render_generate(adapter)),
            "Merged into the base model:",
            "",
            *_code("python", render_merge(adapter)),
            "Served by vLLM:",
            "",
            *_code("sh", render_serve(adapter)),
        ]
    )


def _section(title: str, facts: list[tuple[str, str]]) -> list[str]:
    return [f"## {title}", "", *(f"- {name}: {value}" if name else value for name, value in facts), ""]


def _code(language: str, text: str) -> list[str]:
    return [f"```{language}", text, "```", ""]


def _origin(adapter: AdapterVersion) -> list[tuple[str, str]]:
    job = adapter.job
    base = job.base_model
    facts = [
        ("Job", f"{job.name} ({job.pk})"),
        ("Step", f"{adapter.step} of {job.steps}"),
        ("Base model", f"{base.location}{f', revision {base.revision}' if base.revision else ''} ({base.source})"),
    ]
    digest = f", sha256 `{job.dataset_version.sha256}`" if job.dataset_version else ""
    facts.append(("Dataset", f"{job.rows_from}{digest}"))
    if job.reward_version:
        facts.append(("Reward", f"{job.reward_version} ({job.reward_version.grader_type})"))
    if job.start_from:
        facts.append(("Continues from", job.start_from.name))
    facts.append(("Saved", f"{adapter.created_at:%Y-%m-%d %H:%M} UTC"))
    facts.append((f"sha256 of {WEIGHTS}", f"`{adapter.sha256}`"))
    return facts


def _results(adapter: AdapterVersion) -> list[tuple[str, str]]:
    evaluations = EvaluationRecord.objects.filter(job=adapter.job)
    base = evaluations.filter(adapter_version=None).order_by("seq").last()
    own = evaluations.filter(adapter_version=adapter.version).order_by("seq").last()
    facts = [
        (f"Held-out accuracy, {label}", f"{found.accuracy:.1%} of {found.rows} rows")
        for label, found in (("base model", base), ("this version", own))
        if found
    ]
    step = StepRecord.objects.filter(job=adapter.job, adapter_version=adapter.version).last()
    if step:
        batch = {title: step.metrics[name] for name, title in SHOWN_METRICS.items() if name in step.metrics}
        facts += [(f"Batch that trained it, {title}", f"{value:.3f}") for title, value in batch.items()]
        facts.append(("Tokens sampled for it", f"{step.total_tokens_sampled:,.0f}"))
        facts.append(("Tokens trained on", f"{step.total_tokens_trained:,.0f}"))
        facts.append(("Accelerator-seconds", f"{step.total_accelerator_seconds:,.0f}"))
    return facts


def _settings(spec: dict[str, Any]) -> list[tuple[str, str]]:
    training, lora, sampling = spec["training"], spec["lora"], spec["sampling"]
    return [
        ("Algorithm", training.get("algorithm", "grpo")),
        ("Prompts per step, group size", f"{training['prompts_per_step']}, {training['group_size']}"),
        ("Learning rate", f"{training['learning_rate']:g}"),
        ("LoRA rank, alpha", f"{lora['rank']}, {lora['alpha']:g}{', rsLoRA' if lora.get('use_rslora') else ''}"),
        (
            "Sampling",
            f"temperature {sampling['temperature']:g}, {sampling['max_tokens']} tokens at most",
        ),
        ("Seed", str(spec.get("seed", 0))),
    ]
