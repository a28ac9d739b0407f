"""Reads of base models: the operator's, offered to every tenant alike."""

from __future__ import annotations

from django.db.models import QuerySet

from portal.base_models.models import BaseModel


def list_base_models() -> QuerySet[BaseModel]:
    """Those offered for new jobs."""
    return BaseModel.objects.filter(enabled=True)


def find_base_model(base_model_id: str) -> BaseModel | None:
    """The base model offered under this id, else None."""
    return list_base_models().filter(pk=base_model_id).first() if "\x00" not in base_model_id else None
