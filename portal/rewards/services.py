"""Writes of reward functions."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Max
from pydantic import ValidationError

from engine.spec import RewardSpec
from portal.audit.services import record_change
from portal.errors import FieldError, InvalidInput, field_errors
from portal.json_values import unstorable_fields
from portal.rewards.models import RewardFunction, RewardVersion
from portal.tenants.models import Tenant
from portal.tenants.services import require_writer


def check_reward_spec(spec: dict[str, Any]) -> dict[str, Any]:
    """A reward as it would be stored, with every default filled in; nothing is run or stored.

    ``spec`` is an ``engine.spec.RewardSpec`` as JSON. Raises InvalidInput with a field error for each fault.
    """
    errors = unstorable_fields(spec)
    try:
        normalised = RewardSpec.model_validate(spec).model_dump(mode="json")
    except ValidationError as error:
        named = {item.field for item in errors}  # a number that is not finite is both
        errors += [item for item in field_errors(error, spec) if item.field not in named]
    if errors:
        raise InvalidInput("The reward is not valid.", fields=errors)
    return normalised


def create_reward_version(*, tenant: Tenant, user: User, name: str, spec: dict[str, Any]) -> RewardVersion:
    """Add a version to the tenant's reward function ``name``, made where it does not exist.

    ``spec`` is an ``engine.spec.RewardSpec`` as JSON. Raises InvalidInput with a field error for each fault.
    """
    require_writer(tenant=tenant, user=user)
    errors = []
    name = name.strip()
    if not 1 <= len(name) <= 100:
        errors.append(FieldError("name", "Give the reward function a name of at most 100 characters."))
    try:
        normalised = check_reward_spec(spec)
    except InvalidInput as error:
        errors += error.fields
    if errors:
        raise InvalidInput("The reward function was not saved.", fields=errors)
    with transaction.atomic():
        # Locking the tenant makes the numbering race-free for its first version too.
        Tenant.objects.select_for_update().get(pk=tenant.pk)
        reward_function, _ = RewardFunction.objects.get_or_create(tenant=tenant, name=name)
        last = reward_function.versions.aggregate(last=Max("number"))["last"] or 0
        version = RewardVersion.objects.create(
            reward_function=reward_function, number=last + 1, spec=normalised, created_by_id=user.pk
        )
        record_change(tenant=tenant, user=user, action="reward.saved", target=version, after={"spec": normalised})
    return version
