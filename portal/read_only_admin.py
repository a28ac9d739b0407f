"""Admin of what nobody may change by hand: history and immutable versions."""

from typing import Any

from django.contrib import admin
from django.http import HttpRequest


class NoAdd:
    """Made by services only."""

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class ReadOnly(NoAdd):
    """Neither added nor changed; deleting, where the models permit it, is left to the operator."""

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class ReadOnlyInline(ReadOnly, admin.TabularInline):
    extra = 0
    can_delete = False
    show_change_link = True

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return self.fields

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False
