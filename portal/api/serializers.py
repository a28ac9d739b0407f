"""What the API takes and gives. Rules live in the services; these only name and shape fields."""

from __future__ import annotations

from typing import Any, cast

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from portal.adapters.models import AdapterVersion
from portal.base_models.models import BaseModel
from portal.datasets.models import Dataset, DatasetVersion
from portal.jobs.models import Job
from portal.jobs.selectors import summarize_control
from portal.progress.selectors import VersionMetrics, version_metrics
from portal.rewards.models import RewardFunction, RewardTrial, RewardVersion
from portal.rewards.selectors import trial_cases
from portal.rewards.signal import read_signal


class FieldErrorOutput(serializers.Serializer[Any]):
    field = serializers.CharField()
    message = serializers.CharField()


class LimitOutput(serializers.Serializer[Any]):
    kind = serializers.CharField(help_text="Which limit; those of /quotas/ by the same name.")
    used = serializers.FloatField()
    limit = serializers.FloatField()
    resets_at = serializers.DateTimeField(allow_null=True, help_text="When it starts anew; null for what does not.")
    retry_after = serializers.IntegerField(allow_null=True, help_text="Seconds, as in the header Retry-After.")


class ErrorDetailOutput(serializers.Serializer[Any]):
    code = serializers.CharField()
    message = serializers.CharField()
    # Declared fields are taken off the class, so DRF's own attribute of this name stays.
    fields = FieldErrorOutput(many=True)  # type: ignore[assignment]
    hint = serializers.CharField(allow_blank=True)
    limit = LimitOutput(required=False, help_text="Only where a limit was reached.")


class ErrorOutput(serializers.Serializer[Any]):
    error = ErrorDetailOutput()


class BaseModelOutput(serializers.ModelSerializer[BaseModel]):
    class Meta:
        model = BaseModel
        fields = ["id", "description", "context_length", "max_lora_rank", "dtype"]


class DatasetVersionOutput(serializers.ModelSerializer[DatasetVersion]):
    class Meta:
        model = DatasetVersion
        fields = ["id", "number", "sha256", "rows", "train_rows", "held_out_rows", "size_bytes", "origin", "created_at"]
        extra_kwargs = {"origin": {"help_text": "File, format, mapping, split, repeats found, rows left out."}}


class DatasetOutput(serializers.ModelSerializer[Dataset]):
    versions = DatasetVersionOutput(many=True, help_text="Newest first.")

    class Meta:
        model = Dataset
        fields = ["id", "name", "created_at", "archived_at", "versions"]


class RewardVersionOutput(serializers.ModelSerializer[RewardVersion]):
    class Meta:
        model = RewardVersion
        fields = ["id", "number", "spec", "created_at"]


class RewardFunctionOutput(serializers.ModelSerializer[RewardFunction]):
    versions = RewardVersionOutput(many=True, help_text="Newest first.")

    class Meta:
        model = RewardFunction
        fields = ["id", "name", "created_at", "versions"]


class RewardFunctionInput(serializers.Serializer[Any]):
    name = serializers.CharField(max_length=100, help_text="A name that exists gets a new version.")
    spec = serializers.DictField(help_text="engine.spec.RewardSpec: {'grader': {'type': ...}, 'timeout_seconds': ...}.")


class RewardSpecInput(serializers.Serializer[Any]):
    spec = serializers.DictField(help_text="engine.spec.RewardSpec: {'grader': {'type': ...}, 'timeout_seconds': ...}.")


class RewardValidOutput(serializers.Serializer[Any]):
    valid = serializers.BooleanField(help_text="Always true: what is not valid answers 400 with its fields.")
    spec = serializers.DictField(help_text="The reward as it would be stored, every default filled in.")


class RewardTrialInput(serializers.Serializer[Any]):
    reward_version = serializers.UUIDField(default=None, allow_null=True, help_text="A saved version; or give spec.")
    spec = serializers.DictField(default=None, allow_null=True, help_text="engine.spec.RewardSpec, not saved.")
    validate_only = serializers.BooleanField(default=False, help_text="Check the reward, run nothing; answers 200.")
    row = serializers.DictField(
        default=None,
        allow_null=True,
        help_text="One row as in an upload: prompt or messages, answer, anything else.",
    )
    dataset_version = serializers.UUIDField(
        default=None, allow_null=True, help_text="Instead of row: take rows from this dataset version."
    )
    line = serializers.IntegerField(default=None, allow_null=True, help_text="Only this line of it, counted from 1.")
    rows = serializers.IntegerField(default=20, help_text="Else so many lines drawn by chance; at most 50.")
    completions = serializers.ListField(
        child=serializers.CharField(allow_blank=True, trim_whitespace=False),
        default=list,
        help_text="Score these, at most 8, instead of fresh samples. Of a single row only.",
    )
    base_model = serializers.CharField(
        default="", allow_blank=True, help_text="Draws fresh samples where no completions are given."
    )
    samples = serializers.IntegerField(default=4, help_text="Of each row, 1 to 8.")
    max_tokens = serializers.IntegerField(default=128, help_text="Of one sample, 1 to 2048.")
    temperature = serializers.FloatField(default=1.0, help_text="0 to 2; 0 means greedy.")
    seed = serializers.IntegerField(default=0, help_text="Of the rows' choice and the samples.")
    system_prompt = serializers.CharField(
        default="", allow_blank=True, trim_whitespace=False, help_text="Before rows that have no system message."
    )


class TrialScoreOutput(serializers.Serializer[Any]):
    completion = serializers.CharField()
    total = serializers.FloatField(help_text="In [0, 1]; 0 where error.")
    parts = serializers.DictField(child=serializers.FloatField())
    reason = serializers.CharField()
    error = serializers.BooleanField()
    error_kind = serializers.CharField(help_text="What kind of failure; empty where there is none or it is unknown.")
    details = serializers.CharField(help_text="Traceback with line numbers.")
    console = serializers.CharField(help_text="What the reward printed.")
    seconds = serializers.FloatField(help_text="What the grading took.")
    tokens = serializers.IntegerField(help_text="Sampled; 0 where the completion was given.")
    truncated = serializers.BooleanField(help_text="Cut off at the token limit.")


class TrialCaseOutput(serializers.Serializer[Any]):
    line = serializers.IntegerField(allow_null=True, help_text="Of the dataset, counted from 1.")
    row = serializers.DictField(help_text="engine.spec.DatasetRow.")
    scores = TrialScoreOutput(many=True, help_text="Empty until it is done.")


class TrialFindingOutput(serializers.Serializer[Any]):
    level = serializers.ChoiceField(["good", "warning", "error"])
    code = serializers.CharField()
    message = serializers.CharField()
    hint = serializers.CharField()


class TrialSignalOutput(serializers.Serializer[Any]):
    count = serializers.IntegerField()
    errors = serializers.IntegerField()  # type: ignore[assignment]
    mean = serializers.FloatField()
    deviation = serializers.FloatField()
    low = serializers.FloatField()
    high = serializers.FloatField()
    histogram = serializers.ListField(child=serializers.IntegerField(), help_text="Ten equal steps of [0, 1].")
    groups = serializers.IntegerField(help_text="Rows with at least two completions.")
    flat_groups = serializers.IntegerField(help_text="Those whose completions all score the same.")
    findings = TrialFindingOutput(many=True, help_text="Whether there is a learning signal, and what else to know.")


class RewardTrialSummary(serializers.ModelSerializer[RewardTrial]):
    total = serializers.IntegerField(help_text="Completions in all.")

    class Meta:
        model = RewardTrial
        fields = [
            "id",
            "reward_version",
            "state",
            "reason",
            "done",
            "total",
            "sampled_tokens",
            "accelerator_seconds",
            "created_at",
            "finished_at",
            "expires_at",
        ]


class RewardTrialOutput(RewardTrialSummary):
    reward = serializers.DictField(source="spec.reward", help_text="engine.spec.RewardSpec that is tried.")
    cases = serializers.SerializerMethodField()
    signal = serializers.SerializerMethodField(help_text="Null until it is done.")

    class Meta:
        model = RewardTrial
        fields = [*RewardTrialSummary.Meta.fields, "reward", "signal", "cases"]

    @extend_schema_field(TrialCaseOutput(many=True))
    def get_cases(self, trial: RewardTrial) -> list[dict[str, Any]]:
        return [
            {"line": case.line, "row": case.row, "scores": TrialScoreOutput(case.scores, many=True).data}
            for case in trial_cases(trial)
        ]

    @extend_schema_field(TrialSignalOutput(allow_null=True))
    def get_signal(self, trial: RewardTrial) -> dict[str, Any] | None:
        signal = read_signal(trial.scores)
        return None if signal is None else dict(TrialSignalOutput(signal).data)


class JobInput(serializers.Serializer[Any]):
    name = serializers.CharField(max_length=200)
    base_model = serializers.CharField(max_length=64)
    dataset_version = serializers.UUIDField(
        default=None, allow_null=True, help_text="Left out only where the environment makes the rows: reasoning_gym."
    )
    reward_version = serializers.UUIDField()
    settings = serializers.DictField(
        default=dict,
        help_text="Any of environment, sampling, training, lora, evaluation, limits and seed of engine.spec.JobSpec.",
    )
    start_from = serializers.UUIDField(
        default=None,
        allow_null=True,
        help_text="Id of an adapter version to continue from; its base model and LoRA settings are the job's.",
    )


class EstimateInput(JobInput):
    name = serializers.CharField(max_length=200, default="", allow_blank=True)


class CheckOutput(serializers.Serializer[Any]):
    level = serializers.ChoiceField(["error", "warning"], help_text="With an error the job should not start.")
    field = serializers.CharField(allow_blank=True)
    message = serializers.CharField()
    hint = serializers.CharField(allow_blank=True, help_text="What to do.")


class TokensOutput(serializers.Serializer[Any]):
    prompt = serializers.IntegerField(allow_null=True, help_text="Of all prompts, each counted once an episode.")
    sampled = serializers.IntegerField(help_text="Expected where completion_mean is known, else the most.")
    sampled_at_most = serializers.IntegerField()
    trained = serializers.IntegerField()
    trained_at_most = serializers.IntegerField()
    completion_mean = serializers.FloatField(allow_null=True, help_text="Of your last job on the same dataset.")


class QuotaOutput(serializers.Serializer[Any]):
    name = serializers.CharField()
    limit = serializers.FloatField()
    used = serializers.FloatField()
    left = serializers.FloatField(help_text="After this job; negative where it does not fit.")


class EstimateOutput(serializers.Serializer[Any]):
    can_start = serializers.BooleanField(help_text="No check is an error.")
    checks = CheckOutput(many=True, help_text="Errors first.")
    episodes = serializers.IntegerField()
    passes = serializers.FloatField(allow_null=True, help_text="How often each training row is drawn.")
    tokens = TokensOutput()
    seconds = serializers.FloatField(allow_null=True, help_text="Once it runs. Null where nothing is measured yet.")
    accelerator_seconds = serializers.FloatField(allow_null=True)
    wait_seconds = serializers.FloatField(allow_null=True, help_text="Before it runs, as earlier jobs waited.")
    quotas = QuotaOutput(many=True)
    basis = serializers.ListField(child=serializers.CharField(), help_text="Where each figure comes from.")


class JobChange(serializers.Serializer[Any]):
    priority = serializers.IntegerField(
        required=False, help_text="-10 to 10; among the tenant's own jobs the highest goes first."
    )
    steps = serializers.IntegerField(required=False, help_text="In all; not below those done.")


class ControlOutput(serializers.Serializer[Any]):
    revision = serializers.IntegerField(help_text="Counts the changes.")
    applied_revision = serializers.IntegerField(help_text="The engine goes by this one.")
    paused = serializers.BooleanField()
    cancelled = serializers.BooleanField()
    priority = serializers.IntegerField()
    steps = serializers.IntegerField()


class JobOutput(serializers.ModelSerializer[Job]):
    transition = serializers.SerializerMethodField(
        help_text="What was asked for and the engine has not reported yet: cancelling, pausing, resuming or empty."
    )
    reason = serializers.CharField(source="state_reason", help_text="Why it is in its state.")
    next = serializers.CharField(source="state_next", help_text="What happens next.")
    control = serializers.SerializerMethodField(help_text="What was asked for.")
    metrics = serializers.DictField(child=serializers.FloatField(), help_text="Of the last step.")

    class Meta:
        model = Job
        fields = [
            "id",
            "name",
            "status",
            "transition",
            "reason",
            "next",
            "step",
            "steps",
            "priority",
            "control",
            "metrics",
            "base_accuracy",
            "accuracy",
            "last_accuracy",
            "base_model",
            "dataset_version",
            "reward_version",
            "start_from",
            "spec",
            "last_seq",
            "created_at",
            "started_at",
            "finished_at",
        ]

    def get_transition(self, job: Job) -> str:
        return job.transition.name if job.transition else ""

    @extend_schema_field(ControlOutput)
    def get_control(self, job: Job) -> dict[str, Any]:
        return summarize_control(job)


class EventOutput(serializers.Serializer[Any]):
    seq = serializers.IntegerField()
    type = serializers.CharField()
    time = serializers.FloatField(help_text="Seconds since the epoch.")
    payload = serializers.DictField(help_text="One of the payloads of engine.events.")


class EventsQuery(serializers.Serializer[Any]):
    after = serializers.IntegerField(default=0, min_value=0, max_value=2**31 - 1, help_text="The seq you have.")
    limit = serializers.IntegerField(default=200, min_value=1, max_value=1000)
    type = serializers.CharField(default="", allow_blank=True, help_text="Only these types, separated by commas.")


class EventsOutput(serializers.Serializer[Any]):
    events = EventOutput(many=True)
    last_seq = serializers.IntegerField(help_text="Send it as 'after' to go on.")
    finished = serializers.BooleanField(help_text="The job has ended and nothing follows last_seq.")


class AdapterListSerializer(serializers.ListSerializer[Any]):
    """Looks the metrics of all versions up at once."""

    def to_representation(self, data: Any) -> Any:
        adapters = list(data)
        cast(dict[str, Any], self.context)["version_metrics"] = version_metrics(adapters)
        return super().to_representation(adapters)


class AdapterOutput(serializers.ModelSerializer[AdapterVersion]):
    reward_mean = serializers.SerializerMethodField(help_text="Of the batch that trained it.")
    held_out_accuracy = serializers.SerializerMethodField(help_text="Of this version; null where it was not evaluated.")
    held_out_reward = serializers.SerializerMethodField()
    best = serializers.SerializerMethodField(help_text="Best of its job on held-out rows so far.")

    class Meta:
        model = AdapterVersion
        list_serializer_class = AdapterListSerializer
        fields = [
            "id",
            "job",
            "version",
            "name",
            "sha256",
            "size_bytes",
            "rank",
            "step",
            "final",
            "best",
            "reward_mean",
            "held_out_accuracy",
            "held_out_reward",
            "removed",
            "created_at",
        ]

    def _metrics(self, adapter: AdapterVersion) -> VersionMetrics:
        known = self.context.get("version_metrics")
        return (known if known is not None else version_metrics([adapter]))[adapter.pk]

    def get_reward_mean(self, adapter: AdapterVersion) -> float | None:
        return self._metrics(adapter).reward_mean

    def get_held_out_accuracy(self, adapter: AdapterVersion) -> float | None:
        return self._metrics(adapter).accuracy

    def get_held_out_reward(self, adapter: AdapterVersion) -> float | None:
        return self._metrics(adapter).held_out_reward

    def get_best(self, adapter: AdapterVersion) -> bool:
        return self._metrics(adapter).best


class LinkOutput(serializers.Serializer[Any]):
    url = serializers.URLField(help_text="Works without a token or cookie.")
    expires_at = serializers.DateTimeField()
