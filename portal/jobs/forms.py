"""The forms of jobs: a new one, and changes to one that runs. What a setting may be is ``engine.spec``'s to say."""

from __future__ import annotations

from typing import Any

from annotated_types import Ge, Le
from django import forms
from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db.models import QuerySet
from django.forms import ModelChoiceField
from pydantic import ValidationError as SpecError

from engine.spec import JobControl
from portal.adapters.models import AdapterVersion
from portal.adapters.selectors import list_continuable
from portal.base_models.models import BaseModel
from portal.base_models.selectors import list_base_models
from portal.datasets.models import DatasetVersion
from portal.datasets.selectors import list_dataset_versions
from portal.environments.selectors import list_document_sets, list_environment_tokens
from portal.errors import FieldError, ServiceError, field_errors
from portal.jobs.form_fields import ENVIRONMENTS, NAME_SEPARATOR, SECTIONS, setting_field
from portal.jobs.form_layout import ALGORITHMS, ENVIRONMENT_TYPES, FOLDED, GROUPS, ROWS, TEXTS, WHEN
from portal.pages.http import sentence
from portal.rewards.models import RewardVersion
from portal.rewards.selectors import list_reward_versions
from portal.tenants.models import Tenant

LORA_FIELDS = [name for name in TEXTS if name.startswith("lora__")]

PATTERN_WORDS = {
    "environment__url": "Give an address such as https://environment.example.org, without user, query or fragment.",
    "environment__dataset": "Give the name of a reasoning-gym task, such as countdown.",
    "environment__action_field": "Give the name of a field: letters, digits and underscores, no digit first.",
}
"""What to say where a text does not have the form the spec asks for."""


class JobForm(forms.Form):
    """What a job is made of: names are those of ``engine.spec.JobSpec`` with ``__`` for the dot.

    Besides the fields below it has one a setting (``TEXTS``). A field whose ``WHEN`` does not hold is not looked at.
    """

    name = forms.CharField(
        max_length=200,
        label="Name",
        help_text="To find it again.",
        error_messages={"required": "Give the job a name."},
        widget=forms.TextInput(attrs={"placeholder": "sums, first try", "autocomplete": "off"}),
    )
    base_model = ModelChoiceField(
        queryset=BaseModel.objects.none(),
        label="Base model",
        widget=forms.RadioSelect,
        error_messages={"required": "Choose a base model."},
    )
    rows = forms.ChoiceField(
        choices=[(name, title) for name, (_, title, _) in ROWS.items()],
        initial="dataset",
        required=False,
        label="Prompts from",
        widget=forms.RadioSelect,
    )
    dataset_version = ModelChoiceField(
        queryset=DatasetVersion.objects.none(),
        required=False,  # not where tasks are generated
        label="Dataset",
    )
    reward_version = ModelChoiceField(
        queryset=RewardVersion.objects.none(), label="Reward", error_messages={"required": "Choose a reward."}
    )
    environment__type = forms.ChoiceField(
        choices=[(name, title) for name, (_, title, _) in ENVIRONMENT_TYPES.items()],
        initial="single_turn",
        required=False,
        label="Environment",
        widget=forms.RadioSelect,
    )
    training__algorithm = forms.ChoiceField(
        choices=[(name, title) for name, (title, _) in ALGORITHMS.items()],
        initial="grpo",
        label="Algorithm",
        widget=forms.RadioSelect,
        error_messages={"required": "Choose an algorithm."},
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
        self.fields["environment__dataset"].widget.attrs["list"] = "reasoning-gym-tasks"
        self._offer("environment__documents_sha256", [(one.sha256, one.name) for one in list_document_sets(tenant)])
        self._offer("environment__token_name", [(one.name, one.name) for one in list_environment_tokens(tenant)])

    def _find_source(self, adapters: QuerySet[AdapterVersion]) -> AdapterVersion | None:
        """The adapter version the job is to start from; None too where it is gone or was never the tenant's."""
        value = self["start_from"].value()
        try:
            return adapters.filter(pk=value).first() if value else None
        except ValidationError:  # no id at all
            return None

    def _offer(self, name: str, choices: list[tuple[str, str]]) -> None:
        """A select of what the tenant has; a value that is gone stays, for the check that says so."""
        value = str(self[name].value() or "")
        if value and value not in dict(choices):
            choices = [*choices, (value, f"{value[:16]} (not there)")]
        self.fields[name].widget = forms.Select(choices=[("", "None"), *choices])

    def groups(self) -> dict[str, list[forms.BoundField]]:
        """The settings' fields as the page groups them."""
        return {group: [self[name] for name in names] for group, names in GROUPS.items()}

    def is_folded_open(self) -> bool:
        """Whether something in a fold is wrong or not as it comes."""
        return any(self[name].errors or self._differs(name) for name in FOLDED)

    def _differs(self, name: str) -> bool:
        bound = self[name]
        return bool(bound.field.has_changed(type(self).base_fields[name].initial, bound.value()))

    def applies(self, name: str) -> bool:
        """Whether the setting counts, by what else was chosen."""
        when = WHEN.get(name)
        if when is None:
            return True
        value = self.environment_type if when.name == "environment__type" else self.cleaned_data.get(when.name)
        return (value in when.values) if when.values else bool(value)

    @property
    def rows_from(self) -> str:
        return str(self.cleaned_data.get("rows") or "dataset")

    @property
    def environment_type(self) -> str:
        """A type of ``engine.spec.Environment``; where the rows are reasoning-gym's, so is the environment."""
        if self.rows_from != "dataset":
            return "reasoning_gym"
        return str(self.cleaned_data.get("environment__type") or "single_turn")

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        cleaned["rows"] = self.rows_from
        for name in WHEN:
            if not self.applies(name):
                self.errors.pop(name, None)
                cleaned.pop(name, None)
        if self.rows_from == "generated":
            self.errors.pop("dataset_version", None)
            cleaned["dataset_version"] = None
        elif not cleaned.get("dataset_version") and "dataset_version" not in self.errors:
            self.add_error("dataset_version", "Choose a dataset.")
        settings = self.to_settings()
        for section, model in {**SECTIONS, "environment": ENVIRONMENTS[self.environment_type]}.items():
            given = {name: value for name, value in settings.get(section, {}).items() if name != "type"}
            try:
                model.model_validate(given)
            except SpecError as error:
                self._add_spec_errors(section, field_errors(error, given))
        return cleaned

    def _add_spec_errors(self, section: str, errors: list[FieldError]) -> None:
        """Each at its field: a rule across fields begins with the name of the one to change."""
        for item in errors:
            setting = item.field.split(".")[0] or item.message.split(" ", 1)[0]
            name = f"{section}{NAME_SEPARATOR}{setting}"
            if name in self.fields and name not in self.errors:
                said = PATTERN_WORDS[name] if name in PATTERN_WORDS and "pattern" in item.message else None
                self.add_error(name, said or sentence(item, label=str(self[name].label)))
            elif name not in self.fields:
                self.add_error(None, sentence(item, label=section.capitalize()))

    def to_settings(self) -> dict[str, Any]:
        """The sections of ``engine.spec.JobSpec`` the form covers, without what does not apply."""
        settings: dict[str, Any] = {"environment": {"type": self.environment_type}}
        if "seed" in self.cleaned_data:
            settings["seed"] = self.cleaned_data["seed"]
        known = ENVIRONMENTS[self.environment_type].model_fields
        for name in [*TEXTS, "training__algorithm"]:
            section, setting = name.split(NAME_SEPARATOR)
            if name not in self.cleaned_data or not self.applies(name):
                continue
            if section != "environment" or setting in known:
                value = self.cleaned_data[name]
                is_object = isinstance(self.fields[name], forms.JSONField)
                settings.setdefault(section, {})[setting] = {} if is_object and value is None else value
        return settings

    def add_service_error(self, error: ServiceError) -> None:
        """A refusal of the services, at the fields it names; the rest above the form."""
        for item in error.fields:
            name = item.field.replace(".", NAME_SEPARATOR)
            if "grader environment needs" in item.message:
                name = "reward_version"
            if name not in self.fields:
                self.add_error(None, sentence(item, label=item.field))
            elif name not in self.errors:
                self.add_error(name, sentence(item, label=str(self[name].label)))
        if not error.fields:
            self.add_error(None, f"{error.message} {error.hint}".strip())


_SHAPES: dict[str, dict[str, Any]] = {
    "environment__system_prompt": {"rows": 3, "placeholder": "Answer with the number alone."},
    "environment__dataset": {"placeholder": "countdown"},
    "environment__url": {"placeholder": "https://environment.example.org"},
    "training__overlong_buffer": {"placeholder": "the algorithm's own"},
    "training__max_sampling_rounds": {"placeholder": "the algorithm's own"},
    "limits__max_tokens_sampled": {"placeholder": "no limit"},
    "limits__max_tokens_trained": {"placeholder": "no limit"},
    "limits__max_accelerator_seconds": {"placeholder": "no limit"},
    "reward_errors__max_fraction": {"placeholder": "no limit"},
}
JobForm.base_fields |= {name: setting_field(name, *text, **_SHAPES.get(name, {})) for name, text in TEXTS.items()}


class ControlForm(forms.Form):
    """Asks for one number of ``engine.spec.JobControl``, that of its only field."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        ((name, field),) = self.fields.items()
        field.error_messages["required"] = field.error_messages["invalid"] = f"{field.label} must be a whole number."
        for rule in JobControl.model_fields[name].metadata:
            if isinstance(rule, Ge):
                field.validators.append(MinValueValidator(rule.ge, f"{field.label} must be at least {rule.ge}."))
                field.widget.attrs["min"] = rule.ge
            elif isinstance(rule, Le):
                field.validators.append(MaxValueValidator(rule.le, f"{field.label} must be at most {rule.le}."))
                field.widget.attrs["max"] = rule.le

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
