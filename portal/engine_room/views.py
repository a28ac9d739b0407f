"""The engine page and what it changes; for staff, 404 for everybody else."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec

from django.contrib import messages
from django.contrib.auth.models import User
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_POST

from portal.base_models.models import BaseModel
from portal.engine_room import selectors, services
from portal.engine_room.forms import DrainForm, ScaleForm
from portal.engine_room.timeline import WINDOWS, build_timeline
from portal.engine_room.versions import database_version, portal_versions
from portal.errors import ServiceError
from portal.ops import sandbox
from portal.pages.http import add_service_errors

P = ParamSpec("P")


class StaffRequest(HttpRequest):
    """A request of somebody who may see the engine."""

    user: User


def staff_page(
    view: Callable[Concatenate[StaffRequest, P], HttpResponse],
) -> Callable[Concatenate[HttpRequest, P], HttpResponse]:
    """For operators alone: that the page exists is nobody else's business."""

    @wraps(view)
    def checked(request: HttpRequest, *args: P.args, **kwargs: P.kwargs) -> HttpResponse:
        if not (request.user.is_active and request.user.is_staff):
            raise Http404("No such page.")
        return view(request, *args, **kwargs)  # type: ignore[arg-type]

    return checked


@require_GET
@staff_page
def overview(request: StaffRequest) -> HttpResponse:
    context = {**_live(request), "drain_form": DrainForm(), "sandbox": sandbox.read_report()}
    return render(request, "engine_room/overview.html", context)


@require_GET
@staff_page
def live(request: StaffRequest) -> HttpResponse:
    """The part of the page that changes by itself."""
    return render(request, "engine_room/_live.html", _live(request))


def _live(request: StaffRequest) -> dict[str, Any]:
    state = selectors.read_state()
    drain = selectors.get_drain()
    applied = state.report.drain.revision if state.report and state.report.drain else 0
    counts = selectors.count_jobs_by_status()
    return {
        "state": state,
        "report": state.report,
        "pools": selectors.list_pools(state.report),
        "timeline": build_timeline(minutes=_minutes(request)),
        "windows": WINDOWS,
        "jobs": list(selectors.list_open_jobs()[: selectors.SHOWN_JOBS]),
        "counts": counts,
        "queues": selectors.queue_depths(),
        "drain": drain,
        "drain_pending": drain is not None and drain.revision > applied,
        "versions": portal_versions(),
        "database": database_version(),
        "may_operate": request.user.has_perm(services.PERMISSION),
    }


def _minutes(request: HttpRequest) -> int:
    text = request.GET.get("minutes", "")
    return int(text) if text in {str(minutes) for minutes in WINDOWS} else WINDOWS[0]


@require_POST
@staff_page
def drain(request: StaffRequest) -> HttpResponse:
    form = DrainForm(request.POST)
    if form.is_valid():
        try:
            services.drain_engine(user=request.user, reason=form.cleaned_data["reason"])
        except ServiceError as error:
            add_service_errors(form, error)
        else:
            messages.success(request, "The engine is being drained: jobs pause after the step they are at.")
            return redirect("engine_room:overview")
    context = {**_live(request), "drain_form": form, "sandbox": sandbox.read_report()}
    return render(request, "engine_room/overview.html", context, status=422)


@require_POST
@staff_page
def resume(request: StaffRequest) -> HttpResponse:
    services.resume_engine(user=request.user)
    messages.success(request, "The engine takes work again; jobs go on by themselves.")
    return redirect("engine_room:overview")


@staff_page
def scale(request: StaffRequest, base_model_id: str) -> HttpResponse:
    """How many rollout workers a base model has: a form of its own, with what follows."""
    model = BaseModel.objects.filter(pk=base_model_id).first() if "\x00" not in base_model_id else None
    if model is None:
        raise Http404("No such base model.")
    services.require_operator(request.user)
    pools = selectors.list_pools(selectors.read_state().report)
    pool = next(pool for pool in pools if pool["model"] == model)
    form = ScaleForm(request.POST or None, initial={"rollout_workers": pool["workers_wanted"]})
    if request.method == "POST" and form.is_valid():
        wanted = form.cleaned_data["rollout_workers"]
        try:
            services.scale_pool(user=request.user, base_model_id=model.pk, rollout_workers=wanted)
        except ServiceError as error:
            add_service_errors(form, error)
        else:
            messages.success(request, f"{model.pk} is to have {wanted} rollout worker{'s' if wanted > 1 else ''}.")
            return redirect("engine_room:overview")
    context = {"form": form, "model": model, "pool": pool}
    return render(request, "engine_room/scale.html", context, status=422 if form.errors else 200)
