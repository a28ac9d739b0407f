"""The operator's wishes as they stand; they are changed on the engine page, which audits and sends them."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from portal.engine_room.models import DrainWish, PoolWish
from portal.read_only_admin import ReadOnly


class _Kept(ReadOnly, admin.ModelAdmin):
    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(DrainWish)
class DrainWishAdmin(_Kept):
    list_display = ["__str__", "reason", "revision", "changed_at", "changed_by", "sent_at"]
    list_select_related = ["changed_by"]


@admin.register(PoolWish)
class PoolWishAdmin(_Kept):
    list_display = ["base_model", "rollout_workers", "revision", "changed_at", "sent_at"]
