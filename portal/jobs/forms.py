"""The new-job form. Limits and defaults are read from ``engine.spec``, so that they are said in one place."""

from __future__ import annotations

from typing import Any, get_args

from annotated_types import Ge, Le
from django import forms
from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db.models import QuerySet
from django.forms import ModelChoiceField
from pydantic import BaseModel as PydanticModel
from pydantic.fields import FieldInfo

from engine.spec import (
    EvaluationSettings,
    JobControl,
    Limits,
    LoraSettings,
    SamplingSettings,
    SingleTurn,
    TrainingSettings,
)
from portal.adapters.models import AdapterVersion
from portal.adapters.selectors import list_continuable
from portal.base_models.models import BaseModel
from portal.base_models.selectors import list_base_models
from portal.datasets.models import DatasetVersion
from portal.datasets.selectors import list_dataset_versions
from portal.jobs.models import Job
from portal.rewards.models import RewardVersion
from portal.rewards.selectors import list_reward_versions
from portal.tenants.models import Tenant

SECTIONS: dict[str, type[PydanticModel]] = {
    "environment": SingleTurn,
    "sampling": SamplingSettings,
    "training": TrainingSettings,
    "lora": LoraSettings,
    "evaluation": EvaluationSettings,
    "limits": Limits,
}
NAME_SEPARATOR = "__"
"""``training.steps`` of the spec is the field ``training__steps`` of the form."""

PRESETS: list[dict[str, Any]] = [
    {
        "id": "quick",
        "title": "Quick look",
        "text": "Does anything move? A few small steps.",
        "icon": "zap",
        "values": {"training__steps": 8, "training__prompts_per_step": 4, "training__group_size": 4},
    },
    {
        "id": "balanced",
        "title": "Balanced",
        "text": "The defaults: a sound start for most tasks.",
        "icon": "scale",
        "values": {"training__steps": 20, "training__prompts_per_step": 8, "training__group_size": 8},
    },
    {
        "id": "thorough",
        "title": "Thorough",
        "text": "More steps and larger groups, for the last points.",
        "icon": "target",
        "values": {"training__steps": 100, "training__prompts_per_step": 16, "training__group_size": 16},
    },
]

BASIC = ["training__steps", "training__prompts_per_step", "training__group_size", "sampling__max_tokens"]
ADVANCED = [
    "training__learning_rate",
    "sampling__temperature",
    "lora__rank",
    "lora__alpha",
    "training__max_staleness",
    "training__warmup_steps",
    "training__max_grad_norm",
    "training__clip_low",
    "training__clip_high",
    "evaluation__every_steps",
    "evaluation__max_rows",
    "limits__max_wall_seconds",
    "limits__max_tokens_sampled",
    "limits__max_tokens_trained",
    "limits__max_accelerator_seconds",
    "limits__max_batches_without_signal",
]

LORA_FIELDS = [name for name in ADVANCED if name.startswith("lora__")]


def _number(name: str, label: str, help_text: str) -> forms.Field:
    """A field for the setting ``name`` with the spec's default and limits; one that may be None may be left empty."""
    section, setting = name.split(NAME_SEPARATOR)
    info = SECTIONS[section].model_fields[setting]
    types = get_args(info.annotation) or (info.annotation,)
    is_whole = int in types
    field = forms.IntegerField if is_whole else forms.FloatField
    return field(
        label=label,
        help_text=help_text,
        required=type(None) not in types,
        initial=info.default,
        validators=_validators(info, label),
        widget=forms.NumberInput(attrs={"step": 1 if is_whole else "any"}),
        error_messages={"required": f"{label} is needed.", "invalid": f"{label} must be a number."},
    )


def _validators(info: FieldInfo, label: str) -> list[Any]:
    validators: list[Any] = []
    for rule in info.metadata:
        if isinstance(rule, Ge):
            validators.append(MinValueValidator(rule.ge, f"{label} must be at least {rule.ge}."))
        elif isinstance(rule, Le):
            validators.append(MaxValueValidator(rule.le, f"{label} must be at most {rule.le}."))
    return validators


class DatasetVersionChoice(ModelChoiceField):
    def label_from_instance(self, obj: Any) -> str:
        return f"{obj} · {obj.train_rows} training rows, {obj.held_out_rows} held out"


class RewardVersionChoice(ModelChoiceField):
    def label_from_instance(self, obj: Any) -> str:
        return f"{obj} · {obj.grader_type.replace('_', ' ')}"


class JobForm(forms.Form):
    """What a job is made of. Names of settings are those of ``engine.spec.JobSpec`` with ``__`` for the dot."""

    name = forms.CharField(
        max_length=200,
        label="Name",
        help_text="To find it again.",
        error_messages={"required": "Give the job a name."},
        widget=forms.TextInput(attrs={"placeholder": "sums, first try", "autocomplete": "off"}),
    )
    dataset_version = DatasetVersionChoice(
        queryset=DatasetVersion.objects.none(),
        label="Dataset version",
        empty_label="Choose a dataset version",
        error_messages={"required": "Choose a dataset version."},
    )
    reward_version = RewardVersionChoice(
        queryset=RewardVersion.objects.none(),
        label="Reward version",
        empty_label="Choose a reward version",
        error_messages={"required": "Choose a reward version."},
    )
    base_model = ModelChoiceField(
        queryset=BaseModel.objects.none(),
        label="Base model",
        empty_label=None,
        widget=forms.RadioSelect,
        error_messages={"required": "Choose a base model."},
    )

    training__steps = _number("training__steps", "Steps", "Optimizer updates; each one saves an adapter version.")
    training__prompts_per_step = _number(
        "training__prompts_per_step", "Prompts per step", "Different rows answered in one step."
    )
    training__group_size = _number(
        "training__group_size", "Group size", "Answers drawn for each prompt; they are judged against each other."
    )
    sampling__max_tokens = _number(
        "sampling__max_tokens", "Longest completion", "Tokens. Longer answers are cut off; shorter is faster."
    )
    training__learning_rate = _number(
        "training__learning_rate", "Learning rate", "Lower it where the reward jumps up and down."
    )
    sampling__temperature = _number(
        "sampling__temperature", "Temperature", "Lower draws answers that differ less; with 1 the model is as it is."
    )
    lora__rank = _number("lora__rank", "LoRA rank", "Size of the adapter.")
    lora__alpha = _number("lora__alpha", "LoRA alpha", "The adapter is scaled by alpha / rank.")
    training__max_staleness = _number(
        "training__max_staleness",
        "Staleness",
        "0 learns only from the newest version; 1 and more draws that many steps ahead: faster, a little less exact.",
    )
    training__warmup_steps = _number("training__warmup_steps", "Warm-up steps", "The learning rate rises over these.")
    training__max_grad_norm = _number("training__max_grad_norm", "Gradient clipping", "Largest gradient norm.")
    training__clip_low = _number("training__clip_low", "Clip below", "Lower bound of the policy ratio: 1 minus this.")
    training__clip_high = _number("training__clip_high", "Clip above", "Upper bound of the policy ratio: 1 plus this.")
    evaluation__every_steps = _number(
        "evaluation__every_steps", "Evaluate every", "Steps between held-out evaluations; 0: only at start and end."
    )
    evaluation__max_rows = _number("evaluation__max_rows", "Held-out rows used", "At most so many per evaluation.")
    limits__max_wall_seconds = _number(
        "limits__max_wall_seconds", "Time limit", "Seconds. The job stops there and keeps its adapter."
    )
    limits__max_batches_without_signal = _number(
        "limits__max_batches_without_signal",
        "Batches without signal",
        "So many in a row in which all answers to a prompt score alike end the job: there is nothing to learn from.",
    )
    limits__max_tokens_sampled = _number(
        "limits__max_tokens_sampled", "Sampled tokens, at most", "The job stops there. Empty: no limit."
    )
    limits__max_tokens_trained = _number(
        "limits__max_tokens_trained", "Trained tokens, at most", "The job stops there. Empty: no limit."
    )
    limits__max_accelerator_seconds = _number(
        "limits__max_accelerator_seconds",
        "Accelerator-seconds, at most",
        "Its share of rollout plus its time in the trainer. Empty: no limit.",
    )
    environment__system_prompt = forms.CharField(
        required=False,
        max_length=8000,
        label="System prompt",
        help_text="Put before every prompt that brings none of its own.",
        widget=forms.Textarea(attrs={"rows": 3, "placeholder": "Answer with the number alone."}),
    )
    start_from = ModelChoiceField(queryset=AdapterVersion.objects.none(), required=False, widget=forms.HiddenInput)
    seed = forms.IntegerField(
        initial=0, min_value=0, max_value=2**31 - 1, label="Seed", help_text="The same seed draws the same rows."
    )

    def __init__(self, *args: Any, tenant: Tenant, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        adapters = list_continuable(tenant)
        self.source = self._find_source(adapters)
        base_models = list_base_models()
        if self.source is not None:
            base_models = base_models.filter(pk=self.source.job.base_model_id)
            for name in LORA_FIELDS:
                self.initial[name] = self.source.job.spec["lora"][name.split(NAME_SEPARATOR)[1]]
                self.fields[name].disabled = True  # whatever is sent, the source's value counts
        for name, queryset in {
            "dataset_version": list_dataset_versions(tenant),
            "reward_version": list_reward_versions(tenant),
            "base_model": base_models,
            "start_from": adapters,
        }.items():
            field = self.fields[name]
            assert isinstance(field, ModelChoiceField)
            field.queryset = queryset

    def _find_source(self, adapters: QuerySet[AdapterVersion]) -> AdapterVersion | None:
        """The adapter version the job is to start from; None too where it is gone or was never the tenant's."""
        value = self["start_from"].value()
        try:
            return adapters.filter(pk=value).first() if value else None
        except ValidationError:  # no id at all
            return None

    def to_settings(self) -> dict[str, Any]:
        """The sections of ``engine.spec.JobSpec`` the form covers."""
        settings: dict[str, Any] = {"seed": self.cleaned_data["seed"]}
        for name, value in self.cleaned_data.items():
            section, separator, setting = name.partition(NAME_SEPARATOR)
            if separator:
                settings.setdefault(section, {})[setting] = value
        return settings


class ControlForm(forms.Form):
    """Asks for one number of ``engine.spec.JobControl``, that of its only field."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        ((name, field),) = self.fields.items()
        field.error_messages["required"] = field.error_messages["invalid"] = f"{field.label} must be a whole number."
        for validator in _validators(JobControl.model_fields[name], str(field.label)):
            field.validators.append(validator)
            limit = "min" if isinstance(validator, MinValueValidator) else "max"
            field.widget.attrs[limit] = validator.limit_value

    @property
    def number(self) -> int:
        (value,) = self.cleaned_data.values()
        return int(value)


class StepsForm(ControlForm):
    steps = forms.IntegerField(
        label="Steps", help_text="In all, those done included. Each further step saves an adapter version."
    )


class PriorityForm(ControlForm):
    priority = forms.IntegerField(
        label="Priority", help_text="From -10 to 10. Of your own jobs, those with the highest number go first."
    )


def form_field_names() -> dict[str, str]:
    """Names the service uses -> names of the form's fields."""
    return {name.replace(NAME_SEPARATOR, "."): name for name in JobForm.base_fields}


def initial_from_job(job: Job) -> dict[str, Any]:
    """A form that would make the same job again, with as many steps as it has by now."""
    values: dict[str, Any] = {
        "name": f"{job.name} (again)"[:200],
        "dataset_version": job.dataset_version_id,
        "reward_version": job.reward_version_id,
        "base_model": job.base_model_id,
        "start_from": job.start_from_id,
        "seed": job.spec.get("seed", 0),
    }
    for section in SECTIONS:
        for setting, value in job.spec.get(section, {}).items():
            values[f"{section}{NAME_SEPARATOR}{setting}"] = value
    return {**values, "training__steps": job.steps}


def initial_from_adapter(adapter: AdapterVersion) -> dict[str, Any]:
    """A form for a job like the adapter's own that continues from it."""
    return {
        **initial_from_job(adapter.job),
        "name": f"{adapter.job.name} (continued)"[:200],
        "start_from": adapter.pk,
    }
