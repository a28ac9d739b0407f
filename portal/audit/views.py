"""The audit log's page and its CSV, for owners."""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator, Iterable
from urllib.parse import urlencode

from asgiref.sync import sync_to_async
from django.http import HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.utils import timezone

from portal.audit.forms import AuditFilterForm
from portal.audit.selectors import CSV_COLUMNS, AuditFilter, csv_rows, list_actions, read_page
from portal.pages.http import TenantRequest
from portal.tenants.models import Tenant
from portal.tenants.settings_views import owner_page

CSV_PAGE = 1_000


@owner_page
def audit_list(request: TenantRequest) -> HttpResponse:
    form = AuditFilterForm(request.GET or None, actions=list_actions(request.tenant))
    form.is_valid()
    cursor = request.GET.get("before", "")
    before = int(cursor) if cursor.isascii() and cursor.isdigit() and len(cursor) < 19 else None
    page = read_page(request.tenant, form.chosen(), before=before)
    kept = {name: value for name, value in request.GET.items() if name in form.fields and value}
    context = {"form": form, "page": page, "filtered": bool(kept), "query": urlencode(kept), "first": before is None}
    return render(request, "audit/list.html", context, status=400 if form.errors else 200)


@owner_page
def audit_csv(request: TenantRequest) -> HttpResponseBase:
    """All entries the filters choose, not only a page of them."""
    form = AuditFilterForm(request.GET or None, actions=list_actions(request.tenant))
    form.is_valid()
    return csv_response(request.tenant, form.chosen())


def csv_response(tenant: Tenant, chosen: AuditFilter) -> StreamingHttpResponse:
    """The chosen entries as a file that a spreadsheet opens, newest first."""
    response = StreamingHttpResponse(_stream(tenant, chosen), content_type="text/csv; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="audit-{timezone.now():%Y-%m-%d}.csv"'
    return response


async def _stream(tenant: Tenant, chosen: AuditFilter) -> AsyncIterator[str]:
    """A page of entries at a time: none waits in memory, and no cursor stays open while the client reads."""
    yield _csv_text([CSV_COLUMNS])
    before = None
    while True:
        page = await sync_to_async(read_page)(tenant, chosen, before=before, limit=CSV_PAGE)
        yield _csv_text(csv_rows(page.entries))
        if page.next is None:
            return
        before = page.next


def _csv_text(rows: Iterable[list[str]]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer).writerows(rows)
    return buffer.getvalue()
