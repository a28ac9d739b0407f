"""Everything that is kept sealed, sealed anew: what older versions kept in clear, what is sealed with an old key."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from allauth.mfa.models import Authenticator
from django.conf import settings
from django.db import transaction

from engine.spec.sealing import CannotOpen, Sealer
from portal.environments.services import write_secret_file
from portal.sealing import get_sealer
from portal.webhooks.models import Endpoint


@dataclass
class Sealed:
    """What was done."""

    renewed: int = 0
    current: int = 0
    lost: list[str] = field(default_factory=list)
    """What none of the keys opens; left as it is."""


def seal_all() -> Sealed:
    """Idempotent; what is sealed with the first key already is not touched."""
    sealer, done = get_sealer(), Sealed()
    for endpoint_id in Endpoint.objects.values_list("pk", flat=True):
        with transaction.atomic():
            endpoint = Endpoint.objects.select_for_update().get(pk=endpoint_id)
            names = [name for name in ("secret", "old_secret") if getattr(endpoint, name)]
            changed = [name for name in names if _renew(sealer, endpoint, name, f"webhook {endpoint.pk}", done)]
            endpoint.save(update_fields=changed)
    for authenticator_id in Authenticator.objects.values_list("pk", flat=True):
        with transaction.atomic():
            authenticator = Authenticator.objects.select_for_update().get(pk=authenticator_id)
            holders = list(_seeds(authenticator))
            label = f"second factor {authenticator.pk} of user {authenticator.user_id}"
            if sum(_renew(sealer, holder, key, label, done) for holder, key in holders):  # every one, not the first
                authenticator.save(update_fields=["data"])
    for path in sorted((Path(settings.MARLAAS_VAR) / "tenants").glob("*/tokens/[!.]*")):
        held = {"value": path.read_text(encoding="ascii").strip()}
        if _renew(sealer, held, "value", f"environment token {path}", done):
            write_secret_file(path, held["value"])
    return done


def _seeds(authenticator: Authenticator) -> Iterator[tuple[Any, Any]]:
    """Where the secrets are in what django-allauth keeps: (container, key)."""
    data = authenticator.data
    yield from ((data, key) for key in ("secret", "seed") if isinstance(data.get(key), str))
    codes = data.get("migrated_codes")
    yield from ((codes, index) for index in range(len(codes or [])))


def _renew(sealer: Sealer, holder: Any, key: Any, label: str, done: Sealed) -> bool:
    is_row = isinstance(holder, Endpoint)
    kept = getattr(holder, key) if is_row else holder[key]
    if sealer.is_current(kept):
        done.current += 1
        return False
    try:
        sealed = sealer.seal(sealer.open(kept))
    except CannotOpen:
        done.lost.append(label)
        return False
    if is_row:
        setattr(holder, key, sealed)
    else:
        holder[key] = sealed
    done.renewed += 1
    return True
