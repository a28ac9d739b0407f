"""Makes the spec the engine gets of what a tenant asks for, and says in plain words what is wrong with it."""

from __future__ import annotations

import json
import uuid
from typing import Any

from pydantic import ValidationError

from engine.spec import JobSpec, LoraSettings
from portal.adapters.models import AdapterVersion
from portal.base_models.selectors import find_base_model, list_base_models
from portal.datasets.models import DatasetVersion
from portal.errors import FieldError, InvalidInput, field_errors, plain_number
from portal.json_values import unstorable_fields
from portal.rewards.models import RewardVersion
from portal.tenants.models import Tenant

SETTINGS_SECTIONS = ("environment", "sampling", "training", "lora", "evaluation", "limits", "reward_errors", "seed")


def build_spec(
    *,
    job_id: uuid.UUID,
    tenant: Tenant,
    name: str,
    base_model_id: str,
    dataset_version: DatasetVersion | None,
    reward_version: RewardVersion,
    settings: dict[str, Any],
    start_from: AdapterVersion | None,
) -> JobSpec:
    """The spec of a new job; all it names is the tenant's own. Raises InvalidInput with everything that is wrong.

    Without a dataset version the environment has to make the rows (``reasoning_gym``).
    """
    errors = []
    base_model = find_base_model(base_model_id)
    if base_model is None:
        offered = ", ".join(model.pk for model in list_base_models()) or "none; ask the operator to enable one"
        errors.append(FieldError("base_model", f"Unknown base model {base_model_id!r}. Offered: {offered}."))
    if not name.strip():
        errors.append(FieldError("name", "Give the job a name."))
    if dataset_version is None and not makes_rows(settings.get("environment")):
        errors.append(FieldError("dataset_version", "Choose a dataset version; only reasoning_gym makes its own rows."))
    if dataset_version is not None and dataset_version.train_rows < 1:
        errors.append(FieldError("dataset_version", "This dataset version has no training rows."))
    errors += [
        FieldError(section, "is not a known setting; check the spelling")
        for section in sorted(settings.keys() - set(SETTINGS_SECTIONS))
    ]
    errors += unstorable_fields(settings)
    if start_from is not None:
        errors += _start_errors(start_from, base_model_id)
    if errors or base_model is None:
        raise InvalidInput("The job was not created.", fields=errors)
    data = {
        **settings,
        "job_id": job_id.hex,
        "tenant_id": tenant.pk.hex,
        "name": name.strip(),
        "base_model": base_model.to_spec().model_dump(),
        "dataset": dataset_version.to_ref().model_dump() if dataset_version else None,
        "reward": reward_version.spec,
        "weight": tenant.weight,
    }
    if start_from is not None:
        data["start_from"] = {"job_id": start_from.job_id.hex, "version": start_from.version}
        if isinstance(lora := settings.get("lora", {}), dict):  # what else it may be is refused below
            data["lora"] = {**start_from.job.spec["lora"], **lora}
    try:
        spec = JobSpec.model_validate(data)
    except ValidationError as error:
        raise InvalidInput("The job was not created.", fields=field_errors(error, data)) from None
    if start_from is not None:
        _check_same_lora(spec.lora, start_from)
    return spec


def makes_rows(environment: Any) -> bool:
    """Whether an environment, as sent, makes the job's rows itself."""
    return isinstance(environment, dict) and environment.get("type") == "reasoning_gym"


def _start_errors(adapter: AdapterVersion, base_model_id: str) -> list[FieldError]:
    errors = []
    if adapter.removed:
        message = f"Retention removed the files of {adapter.name}. Choose a newer version of the same job."
        errors.append(FieldError("start_from", message))
    if adapter.version < 1:
        message = f"{adapter.name} is not trained yet. Choose a version from 1 on, or leave this out."
        errors.append(FieldError("start_from", message))
    if adapter.job.base_model_id != base_model_id:
        message = f"must be {adapter.job.base_model_id}, which the adapter to start from was trained on"
        errors.append(FieldError("base_model", message))
    return errors


def _check_same_lora(lora: LoraSettings, adapter: AdapterVersion) -> None:
    theirs = LoraSettings.model_validate(adapter.job.spec["lora"])
    errors = [
        FieldError(f"lora.{name}", f"must be {json.dumps(plain_number(value))}, as in the adapter to start from")
        for name, value in theirs
        if getattr(lora, name) != value
    ]
    if errors:
        raise InvalidInput("The job was not created.", fields=errors)
