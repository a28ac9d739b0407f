"""What the new-job form says: its settings in their groups, the algorithms in a sentence each, presets.

Names of settings are those of ``engine.spec.JobSpec`` with ``__`` for the dot.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from engine.spec.training import USED_BY

Text = tuple[str, str]

EPISODE: dict[str, Text] = {
    "sampling__max_tokens": ("Longest completion", "Tokens a turn. Longer answers are cut off; shorter is faster."),
    "sampling__temperature": ("Temperature", "1 leaves the model as it is; lower draws answers that differ less."),
}
SYSTEM_PROMPT: dict[str, Text] = {
    "environment__system_prompt": ("System prompt", "Put before every prompt that brings none of its own."),
}
TASKS: dict[str, Text] = {
    "environment__dataset": ("Generator", "Name of a reasoning-gym dataset; type to search."),
    "environment__config": ("Its settings", "JSON; empty for its own defaults. They set the difficulty."),
}
GENERATED: dict[str, Text] = {
    "environment__train_rows": ("Rows to train on", "How many different rows are generated."),
    "environment__held_out_rows": ("Rows held out", "Training never sees them; progress is measured on them."),
    "environment__tasks_seed": ("Seed of the rows", "The same seed generates the same rows."),
}
TOOLS: dict[str, Text] = {
    "environment__tools": ("Tools", "The model may call them before it answers."),
    "environment__documents_sha256": ("Documents", "What search finds, besides those a row brings along."),
    "environment__search_results": ("Results of a search", "Documents one search returns."),
}
SERVER: dict[str, Text] = {
    "environment__url": ("Address", "Where the server listens. Private addresses need the operator's leave."),
    "environment__token_name": ("Token", "Sent to the server with every request."),
}
OPENENV: dict[str, Text] = {
    "environment__action_field": ("Field for the reply", "The field of the action the model's reply is put in."),
    "environment__observation_field": ("Field shown to the model", "Of the observation; empty shows all of it."),
    "environment__action": ("Other fields of the action", "JSON, the same at every step."),
}
TURNS: dict[str, Text] = {
    "environment__max_turns": ("Turns at most", "Replies of the model in one episode."),
    "environment__max_episode_tokens": ("Tokens of an episode", "After the prompt; 0: as many as the context leaves."),
}
TURNS_ADVANCED: dict[str, Text] = {
    "environment__step_timeout_seconds": (
        "Time limit of a turn",
        "Seconds. Past it the episode scores 0, as an error.",
    ),
    "environment__max_observation_characters": ("Longest observation", "Characters the environment may answer with."),
}
AMOUNT: dict[str, Text] = {
    "training__steps": ("Steps", "Optimizer updates; each one saves an adapter version."),
    "training__learning_rate": ("Learning rate", "Lower it where the reward jumps up and down."),
    "training__prompts_per_step": ("Prompts per step", "Different rows answered in one step."),
    "training__group_size": ("Group size", "Answers drawn for each prompt; they are judged against each other."),
}
ADAPTER: dict[str, Text] = {
    "lora__rank": ("LoRA rank", "Size of the adapter: more room to learn, slower to serve."),
    "lora__alpha": ("LoRA alpha", "The adapter is scaled by alpha / rank."),
}
ADAPTER_ADVANCED: dict[str, Text] = {
    "lora__use_rslora": ("Rank-stabilised", "Scale by alpha / sqrt(rank) instead, for high ranks."),
    "lora__target_modules": ("Layers that carry the adapter", "None chosen: all of the base model's."),
}
EVALUATION: dict[str, Text] = {
    "evaluation__every_steps": ("Evaluate every", "Steps between held-out evaluations; 0: only at start and end."),
    "evaluation__patience": ("Patience", "End after so many evaluations without improvement; 0: never."),
}
EVALUATION_ADVANCED: dict[str, Text] = {
    "evaluation__max_rows": ("Held-out rows used", "At most so many per evaluation."),
    "evaluation__min_delta": ("Least improvement", "Accuracy has to rise by this to count, 0 to 1."),
    "evaluation__result": ("Result", "Which version the job hands back: the best on held-out rows, or the last."),
}
REWARD_ERRORS: dict[str, Text] = {
    "reward_errors__mode": (
        "An answer whose reward fails",
        "Scores 0; or is left out, as if it had not been drawn; or ends the job.",
    ),
    "reward_errors__max_fraction": (
        "Share of errors, at most",
        "Above it the job fails, 0 to 1. Empty: no limit, unless one error ends the job.",
    ),
    "reward_errors__window_batches": ("Counted over", "The share is that of so many batches."),
}
OPTIMIZER: dict[str, Text] = {
    "training__max_staleness": (
        "Staleness",
        "0 learns only from the newest version; 1 and more draws that many steps ahead: faster, a little less exact.",
    ),
    "training__epochs": ("Passes over a batch", "More learns more from the same answers, less surely."),
    "training__minibatches": ("Updates per pass", "Splits the batch; at most as many as prompts per step."),
    "training__schedule": ("Learning rate over time", "After the warm-up: as it is, or down to 0 at the last step."),
    "training__warmup_steps": ("Warm-up steps", "The learning rate rises over these."),
    "training__weight_decay": ("Weight decay", "Pulls the adapter's weights towards 0."),
    "training__max_grad_norm": ("Gradient clipping", "Largest gradient norm."),
    "training__adam_beta1": ("Adam beta 1", "Decay of the mean gradient."),
    "training__adam_beta2": ("Adam beta 2", "Decay of the mean squared gradient."),
}
POLICY: dict[str, Text] = {
    "training__kl_coefficient": ("KL to the base model", "Holds the model near the base; 0: not at all, and faster."),
    "training__kl_estimator": ("KL estimator", "k1 counts as a cost in the reward; k2 and k3 in the loss."),
    "training__entropy_coefficient": ("Entropy bonus", "Rewards variety; for runs whose answers become all alike."),
    "training__clip_low": ("Clip below", "Lower bound of the policy ratio: 1 minus this."),
    "training__clip_high": ("Clip above", "Upper bound of the policy ratio: 1 plus this."),
    "training__sequence_clip_low": ("Clip below, whole answers", "As above, for the ratio of a whole answer."),
    "training__sequence_clip_high": ("Clip above, whole answers", "As above, for the ratio of a whole answer."),
    "training__ratio_cap": ("Cap of the ratio", "No token weighs more than this."),
    "training__importance": ("Sampler and trainer disagree", "Truncate a token's weight, or mask the token."),
    "training__importance_cap": ("Largest importance weight", "Of a token, trainer to sampler."),
    "training__importance_floor": ("Least importance weight", "Tokens below are masked."),
    "training__overlong_buffer": (
        "Overlong buffer",
        "Reward is taken away over the last so many tokens. Empty: the algorithm's own.",
    ),
    "training__max_sampling_rounds": (
        "Rounds of sampling",
        "Groups that teach nothing are drawn again. Empty: the algorithm's own.",
    ),
}
LIMITS: dict[str, Text] = {
    "limits__max_wall_seconds": ("Time limit", "Seconds. The job stops there and keeps its adapter."),
    "limits__max_batches_without_signal": (
        "Batches without signal",
        "So many in a row in which all answers to a prompt score alike end the job.",
    ),
    "limits__max_tokens_sampled": ("Sampled tokens, at most", "The job stops there. Empty: no limit."),
    "limits__max_tokens_trained": ("Trained tokens, at most", "The job stops there. Empty: no limit."),
    "limits__max_accelerator_seconds": (
        "Accelerator-seconds, at most",
        "Its share of rollout plus its time in the trainer. Empty: no limit.",
    ),
}

GROUPS: dict[str, dict[str, Text]] = {
    "system_prompt": SYSTEM_PROMPT,
    "tasks": TASKS,
    "generated": GENERATED,
    "tools": TOOLS,
    "server": SERVER,
    "openenv": OPENENV,
    "turns": TURNS,
    "turns_advanced": TURNS_ADVANCED,
    "episode": EPISODE,
    "amount": AMOUNT,
    "adapter": ADAPTER,
    "adapter_advanced": ADAPTER_ADVANCED,
    "evaluation": EVALUATION,
    "evaluation_advanced": EVALUATION_ADVANCED,
    "optimizer": OPTIMIZER,
    "policy": POLICY,
    "limits": LIMITS,
    "reward_errors": REWARD_ERRORS,
}
TEXTS: dict[str, Text] = {name: text for group in GROUPS.values() for name, text in group.items()}
FOLDED = [
    *TURNS_ADVANCED, *ADAPTER_ADVANCED, *EVALUATION_ADVANCED, *OPTIMIZER, *POLICY, *LIMITS, *REWARD_ERRORS, "seed",
]  # fmt: skip
"""Advanced settings, in folds."""


@dataclass(frozen=True)
class When:
    """A setting counts, and is shown, only where another field has one of some values; no values: one that is not 0."""

    name: str
    values: tuple[str, ...] = field(default=())


_TYPE = "environment__type"
WHEN: dict[str, When] = {
    **dict.fromkeys(TASKS, When("rows", ("generated", "entries"))),
    **dict.fromkeys(GENERATED, When("rows", ("generated",))),
    **dict.fromkeys(TOOLS, When(_TYPE, ("tools",))),
    **dict.fromkeys(SERVER, When(_TYPE, ("remote", "openenv"))),
    **dict.fromkeys(OPENENV, When(_TYPE, ("openenv",))),
    **dict.fromkeys([*TURNS, *TURNS_ADVANCED], When(_TYPE, ("tools", "remote", "openenv"))),
    **{f"training__{name}": When("training__algorithm", algorithms) for name, algorithms in USED_BY.items()},
    "training__kl_estimator": When("training__kl_coefficient"),
    "training__importance_floor": When("training__importance", ("mask",)),
}

ROWS: dict[str, tuple[str, str, str]] = {
    "dataset": ("database", "My dataset", "Prompts with answers you have uploaded."),
    "generated": ("sparkles", "Generated rows", "A reasoning-gym generator by name; no dataset is needed."),
    "entries": ("layers", "My reasoning-gym entries", "A dataset with question, answer and metadata of a generator."),
}
ENVIRONMENT_TYPES: dict[str, tuple[str, str, str]] = {
    "single_turn": ("message-square", "Single turn", "The model answers once; the reward scores the answer."),
    "tools": ("calculator", "Tools", "The model may calculate, search documents or run Python before it answers."),
    "remote": ("external-link", "Remote server", "A server of yours plays the environment over HTTP."),
    "openenv": ("box", "OpenEnv", "A server of the OpenEnv standard."),
}
ALGORITHMS: dict[str, tuple[str, str]] = {
    "grpo": ("GRPO", "Judges each answer against the others to the same prompt. The sound first choice."),
    "dr_grpo": ("Dr. GRPO", "GRPO without the terms that favour long wrong answers and very easy or hard prompts."),
    "dapo": ("DAPO", "For long answers: draws prompts that teach nothing again, and curbs answers that run too long."),
    "gspo": ("GSPO", "Weighs answers as a whole instead of token by token. Steadier on long answers."),
    "cispo": ("CISPO", "Lets every token count, rare turning points too; caps their weight instead of clipping."),
    "rloo": ("RLOO", "Compares each answer with the mean of the others. Simple, good where rewards are smooth."),
    "reinforce_pp": ("REINFORCE++", "Compares with the whole batch, so that prompts of equal answers teach too."),
    "reinforce_pp_baseline": (
        "REINFORCE++ baseline",
        "As REINFORCE++, less the mean of the prompt's own answers. For rewards whose scale differs by prompt.",
    ),
}

PRESETS: list[dict[str, Any]] = [
    {
        "id": "quick",
        "title": "Quick try",
        "text": "Does anything move? A few small steps.",
        "icon": "zap",
        "values": {"training__steps": 8, "training__prompts_per_step": 4, "training__group_size": 4},
    },
    {
        "id": "balanced",
        "title": "Balanced",
        "text": "The defaults: a sound start for most jobs.",
        "icon": "scale",
        "values": {"training__steps": 20, "training__prompts_per_step": 8, "training__group_size": 8},
    },
    {
        "id": "maths",
        "title": "Careful, maths",
        "text": "Larger groups, gentler steps, held-out checks on the way.",
        "icon": "sigma",
        "values": {
            "training__algorithm": "dr_grpo",
            "training__steps": 100,
            "training__prompts_per_step": 16,
            "training__group_size": 16,
            "training__learning_rate": 1e-4,
            "training__warmup_steps": 5,
            "evaluation__every_steps": 10,
            "sampling__max_tokens": 256,
        },
    },
    {
        "id": "long",
        "title": "Long answers",
        "text": "DAPO with room to think; answers that run on are curbed.",
        "icon": "ruler",
        "values": {
            "training__algorithm": "dapo",
            "training__steps": 60,
            "training__prompts_per_step": 8,
            "training__group_size": 16,
            "training__learning_rate": 1e-4,
            "training__warmup_steps": 0,
            "evaluation__every_steps": 10,
            "sampling__max_tokens": 512,
        },
    },
]
RESET: dict[str, Any] = {
    "training__algorithm": "grpo",
    "training__learning_rate": 2e-4,
    "training__warmup_steps": 0,
    "evaluation__every_steps": 0,
    "sampling__max_tokens": 64,
}
"""What presets set and others leave out: choosing one after another gives the same as choosing it at first."""
for _preset in PRESETS:
    _preset["values"] = {**RESET, **_preset["values"]}
