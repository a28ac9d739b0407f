"""The contract, portal to engine: what a job is (``JobSpec``) and the commands that carry it.

Pure pydantic; imported by both sides. Everything is validated here, once: an unknown field is an error, so a misspelt
setting can never be silently ignored. A change of meaning raises ``SPEC_VERSION``.

Invariant: a spec is complete. The engine reads nothing about a job but its spec and the dataset file the spec names,
which it checks against its sha256.
"""

from __future__ import annotations

from engine.spec.contract import NAME_PATTERN, Contract
from engine.spec.data import BaseModelSpec, DatasetRef, DatasetRow, Message, Turn
from engine.spec.describe import describe
from engine.spec.environments import (
    Environment,
    HttpEnvironment,
    MultiTurn,
    OpenEnv,
    ReasoningGym,
    Remote,
    SingleTurn,
    Tools,
)
from engine.spec.job import JobControl, JobSpec, PoolControl, StartFrom, adapter_name
from engine.spec.operations import (
    DRAIN_ENGINE,
    ENGINE_REPORT,
    REPORT_SECONDS,
    DrainControl,
    EngineReport,
    NodeState,
    PoolState,
    TenantShare,
    WorkerState,
)
from engine.spec.rewards import (
    Brevity,
    CodeTests,
    DeclarativeGrader,
    EnvironmentReward,
    ExactMatch,
    Format,
    Grader,
    JsonPath,
    JsonSchema,
    Judge,
    Label,
    LabelMatch,
    LengthWindow,
    Maths,
    Mix,
    MixPart,
    Numeric,
    Python,
    ReasoningGymScore,
    Regex,
    RewardErrorPolicy,
    RewardSpec,
    SandboxedGrader,
    SimpleGrader,
    StringCheck,
    TextSimilarity,
    leaf_graders,
)
from engine.spec.training import (
    Algorithm,
    EvaluationSettings,
    Limits,
    LoraSettings,
    SamplingSettings,
    TargetModule,
    TrainingSettings,
)

SPEC_VERSION = 1

# Celery: the queue the engine bridge consumes and the names of the tasks on it.
ENGINE_QUEUE = "engine"
SUBMIT_JOB = "engine.submit_job"  # (spec: JobSpec as JSON). Idempotent by job_id.
CONTROL_JOB = "engine.control_job"  # (job_id: str, control: JobControl as JSON). The highest revision wins.
SCALE_POOL = "engine.scale_pool"  # (base_model_id: str, control: PoolControl as JSON). The highest revision wins.
ACKNOWLEDGE_EVENTS = "engine.acknowledge_events"  # (acknowledged: {job_id: highest seq stored by the portal})

__all__ = [
    "ACKNOWLEDGE_EVENTS",
    "CONTROL_JOB",
    "DRAIN_ENGINE",
    "ENGINE_QUEUE",
    "ENGINE_REPORT",
    "NAME_PATTERN",
    "REPORT_SECONDS",
    "SCALE_POOL",
    "SPEC_VERSION",
    "SUBMIT_JOB",
    "Algorithm",
    "BaseModelSpec",
    "Brevity",
    "CodeTests",
    "Contract",
    "DatasetRef",
    "DatasetRow",
    "DeclarativeGrader",
    "DrainControl",
    "EngineReport",
    "Environment",
    "EnvironmentReward",
    "EvaluationSettings",
    "ExactMatch",
    "Format",
    "Grader",
    "HttpEnvironment",
    "JobControl",
    "JobSpec",
    "JsonPath",
    "JsonSchema",
    "Judge",
    "Label",
    "LabelMatch",
    "LengthWindow",
    "Limits",
    "LoraSettings",
    "Maths",
    "Message",
    "Mix",
    "MixPart",
    "MultiTurn",
    "NodeState",
    "Numeric",
    "OpenEnv",
    "PoolControl",
    "PoolState",
    "Python",
    "ReasoningGym",
    "ReasoningGymScore",
    "Regex",
    "Remote",
    "RewardErrorPolicy",
    "RewardSpec",
    "SamplingSettings",
    "SandboxedGrader",
    "SimpleGrader",
    "SingleTurn",
    "StartFrom",
    "StringCheck",
    "TargetModule",
    "TenantShare",
    "TextSimilarity",
    "Tools",
    "TrainingSettings",
    "Turn",
    "WorkerState",
    "adapter_name",
    "describe",
    "leaf_graders",
]
