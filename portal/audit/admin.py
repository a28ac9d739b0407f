"""The audit log on the admin pages, and the mixin that writes it for what admins change there."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db import models, transaction
from django.forms import BaseModelFormSet, CharField, ModelForm
from django.http import HttpRequest
from django.utils.html import format_html_join
from django.utils.safestring import SafeString

from portal.audit.models import AuditEntry
from portal.audit.services import record_change
from portal.large_tables_admin import LargeTableAdmin
from portal.tenants.models import Tenant

SEARCHED = 20_000
"""Entries a search of the operator's looks at: the log of all tenants only ever grows."""


def _values(target: models.Model) -> dict[str, Any]:
    return {field.attname: field.value_from_object(target) for field in target._meta.concrete_fields}


def _tenant_of(target: models.Model) -> Tenant | None:
    """The tenant an object belongs to, along the foreign keys that lead there; None for the installation's own."""
    if isinstance(target, Tenant):
        return target
    for name in ("tenant", "dataset", "reward_function", "job"):
        if name in {field.name for field in target._meta.concrete_fields}:
            owner = getattr(target, name)
            return _tenant_of(owner) if owner is not None else None
    return None


class AuditedAdmin(admin.ModelAdmin):
    """A ``ModelAdmin`` whose changes are in the audit log, in the transaction Django makes them in."""

    def _record(self, request: HttpRequest, verb: str, target: models.Model, before: Any, after: Any) -> None:
        record_change(
            tenant=_tenant_of(target),
            user=request.user,
            action=f"{target._meta.model_name}.{verb}",
            target=target,
            before=before,
            after=after,
            reason=request.POST.get("audit_reason", "").strip(),
        )

    def _act_as_admin(self, request: HttpRequest) -> None:
        origin = request.origin  # type: ignore[attr-defined]
        origin.admin_id, origin.admin_label = str(request.user.pk), request.user.get_username()

    def save_model(self, request: HttpRequest, obj: models.Model, form: ModelForm, change: bool) -> None:
        self._act_as_admin(request)
        with transaction.atomic():
            before = _values(type(obj)._default_manager.get(pk=obj.pk)) if change else {}
            super().save_model(request, obj, form, change)
            self._record(request, "changed" if change else "created", obj, before, _values(obj))

    def delete_model(self, request: HttpRequest, obj: models.Model) -> None:
        self._act_as_admin(request)
        with transaction.atomic():
            self._record(request, "deleted", obj, _values(obj), {})
            super().delete_model(request, obj)

    def delete_queryset(self, request: HttpRequest, queryset: models.QuerySet[Any]) -> None:
        self._act_as_admin(request)
        with transaction.atomic():
            for obj in queryset:
                self._record(request, "deleted", obj, _values(obj), {})
            super().delete_queryset(request, queryset)

    def save_formset(self, request: HttpRequest, form: ModelForm, formset: BaseModelFormSet, change: bool) -> None:
        """Inline objects."""
        self._act_as_admin(request)
        with transaction.atomic():
            pks = [item.instance.pk for item in formset.forms if item.instance.pk and not item.instance._state.adding]
            before = {obj.pk: _values(obj) for obj in formset.get_queryset().filter(pk__in=pks)}
            for item in formset.deleted_forms:
                self._record(request, "deleted", item.instance, before.get(item.instance.pk, {}), {})
            super().save_formset(request, form, formset, change)
            for obj in formset.new_objects:
                self._record(request, "created", obj, {}, _values(obj))
            for obj, _ in formset.changed_objects:
                self._record(request, "changed", obj, before[obj.pk], _values(obj))


class ReasonedForm(ModelForm):
    """Asks why, and does not take a change without an answer."""

    audit_reason = CharField(
        label="Reason",
        max_length=300,
        help_text="Why you change it; kept in the audit log, which the tenant's owners can read.",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["audit_reason"].required = not self.instance._state.adding


class ReasonedAdmin(AuditedAdmin):
    """An ``AuditedAdmin`` that asks for the reason of each change."""

    form = ReasonedForm


def _one_line(value: str | None) -> str:
    return (value or "–").replace("\n", ", ")


@admin.register(AuditEntry)
class AuditEntryAdmin(LargeTableAdmin):
    """``?tenant_id=<id>`` shows a tenant's."""

    list_display = ["time", "who", "action", "object_label", "tenant_name"]
    exclude = ["before", "after"]
    readonly_fields = ["changes_in_words"]
    list_filter = ["actor_kind", "time"]
    search_fields = ["tenant_name", "actor_label", "on_behalf_of", "object_label", "object_id", "request_id"]
    search_help_text = f"Among the latest {SEARCHED:,} entries."

    def get_search_results(
        self, request: HttpRequest, queryset: models.QuerySet[Any], search_term: str
    ) -> tuple[models.QuerySet[Any], bool]:
        if search_term.strip():
            last = AuditEntry.objects.order_by("-pk").values_list("pk", flat=True).first() or 0
            queryset = queryset.filter(pk__gt=last - SEARCHED)
        return super().get_search_results(request, queryset, search_term)

    @admin.display(description="Who")
    def who(self, entry: AuditEntry) -> str:
        behalf = f", on behalf of {entry.on_behalf_of}" if entry.on_behalf_of else ""
        return f"{entry.actor_label} ({entry.get_actor_kind_display().lower()}){behalf}"

    @admin.display(description="Changes")
    def changes_in_words(self, entry: AuditEntry) -> SafeString:
        return format_html_join(
            "",
            "<div>{}: {} → {}</div>",
            ((name, _one_line(old), _one_line(new)) for name, old, new in entry.changes),
        )

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False
