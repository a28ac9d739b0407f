"""The page of usage and quotas, and its export."""

from __future__ import annotations

from datetime import date
from typing import Any

from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.shortcuts import render

from portal.pages.http import TenantRequest, page_number, tenant_page
from portal.usage import selectors
from portal.usage.export import stream_csv
from portal.usage.meters import get_quotas, list_meters
from portal.usage.periods import Period
from portal.usage.recording import TRIALS_NAME

PAGE_SIZE = 25
SHOWN_MEMBERS = 100
METRICS = {
    "accelerator_seconds": "Accelerator-seconds",
    "tokens_sampled": "Sampled tokens",
    "tokens_trained": "Trained tokens",
}
BAR_HEIGHT = 100


@tenant_page
def overview(request: TenantRequest) -> HttpResponse:
    """A month (``?month=2026-11``): totals, by day in one measure (``?metric=``), by job and by member."""
    tenant, period = request.tenant, _period(request)
    metric = request.GET.get("metric", "")
    metric = metric if metric in METRICS else next(iter(METRICS))
    days = selectors.list_days(tenant, period)
    page = Paginator(selectors.list_usage_by_job(tenant, period), PAGE_SIZE).get_page(page_number(request))
    quotas = get_quotas(tenant)
    context = {
        "period": period,
        "earlier": period.previous if _has_usage_before(request, period) else None,
        "later": None if period.first >= Period.of().first else period.following,
        "totals": selectors.get_totals(tenant, period, days),
        "meters": list_meters(tenant),
        "quotas": quotas,
        "metric": metric,
        "metrics": METRICS.items(),
        "metric_label": METRICS[metric],
        "bars": _bars({day: getattr(totals, metric) for day, totals in days.items()}),
        "highest": max(getattr(totals, metric) for totals in days.values()),
        "days": [(day, totals) for day, totals in days.items() if totals.is_any],
        "page": page,
        "trials_name": TRIALS_NAME,
        "pager_query": f"&month={period}&metric={metric}",
        "members": selectors.list_usage_by_member(tenant, period)[:SHOWN_MEMBERS],
        "notices": selectors.list_quota_notices(tenant, period)[:10],
        "changes": selectors.list_quota_changes(tenant)[:5],
    }
    return render(request, "usage/overview.html", context)


@tenant_page
def export_csv(request: TenantRequest) -> StreamingHttpResponse:
    period = _period(request)
    response = StreamingHttpResponse(stream_csv(request.tenant, period), content_type="text/csv; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="usage-{request.tenant.slug}-{period}.csv"'
    return response


def _period(request: HttpRequest) -> Period:
    """The month asked for; the current one for none, nonsense and the future."""
    asked, current = Period.parse(request.GET.get("month", "")), Period.of()
    return asked if asked is not None and asked.first <= current.first else current


def _has_usage_before(request: TenantRequest, period: Period) -> bool:
    first = selectors.find_first_period(request.tenant)
    return first is not None and first.first < period.first


def _bars(values: dict[date, float]) -> list[dict[str, Any]]:
    """Bars of a chart 100 units high, 10 units a day; any usage at all is seen."""
    highest = max(values.values()) or 1
    bars = []
    for number, (day, value) in enumerate(values.items()):
        height = max(1.5, BAR_HEIGHT * value / highest) if value else 0
        bars.append({"day": day, "value": value, "x": 10 * number + 1, "y": BAR_HEIGHT - height, "height": height})
    return bars
