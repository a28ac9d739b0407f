"""The page of what environments need: documents for the search tool and tokens for remote servers."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_POST

from portal.environments.forms import DocumentsForm, TokenForm
from portal.environments.selectors import (
    get_document_set,
    get_environment_token,
    list_document_sets,
    list_environment_tokens,
)
from portal.environments.services import (
    create_document_set,
    create_environment_token,
    delete_document_set,
    delete_environment_token,
    replace_environment_token,
)
from portal.errors import ServiceError
from portal.pages.http import TenantRequest, add_service_errors, in_words, tenant_page, writer_page
from portal.tenants.services import require_writer


@sensitive_post_parameters("value")
@never_cache
@tenant_page
def overview(request: TenantRequest) -> HttpResponse:
    """The page, and its two forms: the button's ``kind`` says which was sent."""
    kind = request.POST.get("kind") if request.method == "POST" else None
    sent = request.POST if kind else None
    documents_form = DocumentsForm(sent if kind == "documents" else None, request.FILES or None, prefix="documents")
    token_form = TokenForm(sent if kind == "token" else None, prefix="token")
    if kind:
        require_writer(tenant=request.tenant, user=request.user)
    try:
        if kind == "documents" and documents_form.is_valid():
            made = create_document_set(
                tenant=request.tenant,
                user=request.user,
                name=documents_form.cleaned_data["name"],
                file=documents_form.stream(),
            )
            messages.success(request, f"{made.name} is stored: {made.documents} document(s).")
            return redirect("environments:overview")
        if kind == "token" and token_form.is_valid():
            token = create_environment_token(tenant=request.tenant, user=request.user, **token_form.cleaned_data)
            messages.success(request, f"{token.name} is stored. Jobs can name it now.")
            return redirect("environments:overview")
    except ServiceError as error:
        add_service_errors(documents_form if kind == "documents" else token_form, error)
    context = {
        "documents_form": documents_form,
        "token_form": token_form,
        "document_sets": list_document_sets(request.tenant),
        "tokens": list_environment_tokens(request.tenant),
    }
    refused = documents_form.errors or token_form.errors
    return render(request, "environments/overview.html", context, status=400 if refused else 200)


@writer_page
@require_POST
def documents_delete(request: TenantRequest, document_set_id: uuid.UUID) -> HttpResponse:
    name = get_document_set(request.tenant, document_set_id).name
    return _act(request, delete_document_set, f"{name} is deleted.", document_set_id=document_set_id)


@sensitive_post_parameters("value")
@writer_page
@require_POST
def token_replace(request: TenantRequest, environment_token_id: uuid.UUID) -> HttpResponse:
    name = get_environment_token(request.tenant, environment_token_id).name
    return _act(
        request,
        replace_environment_token,
        f"{name} has its new value; jobs send it from their next request on.",
        environment_token_id=environment_token_id,
        value=request.POST.get("value", ""),
    )


@writer_page
@require_POST
def token_delete(request: TenantRequest, environment_token_id: uuid.UUID) -> HttpResponse:
    name = get_environment_token(request.tenant, environment_token_id).name
    return _act(request, delete_environment_token, f"{name} is deleted.", environment_token_id=environment_token_id)


def _act(request: TenantRequest, service: Callable[..., Any], done: str, **arguments: Any) -> HttpResponse:
    try:
        service(tenant=request.tenant, user=request.user, **arguments)
    except ServiceError as error:
        messages.error(request, in_words(error))
    else:
        messages.success(request, done)
    return redirect("environments:overview")
