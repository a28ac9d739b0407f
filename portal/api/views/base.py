"""What every view of the API shares."""

from __future__ import annotations

from typing import Any, NoReturn, TypeVar, cast

from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.models import User
from django.db.models import Model, QuerySet
from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from drf_spectacular.utils import OpenApiResponse
from rest_framework.generics import ListAPIView
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import Serializer
from rest_framework.views import APIView

from portal.api import idempotency
from portal.api.errors import HINTS, RateLimited, answer_plain
from portal.api.filters import CreatedQuery, ListQuery
from portal.api.models import IdempotencyKey
from portal.api.negotiation import FirstRenderer
from portal.api.serializers import ErrorOutput
from portal.api.throttling import TokenThrottle, rate_headers
from portal.tenants.models import ApiToken, Tenant

ModelT = TypeVar("ModelT", bound=Model)

ERRORS = {
    code: OpenApiResponse(ErrorOutput, description=text)
    for code, text in (
        (400, "Fields are wrong."),
        (401, "No valid token."),
        (403, "The token's scope or the user's role does not permit it."),
        (404, "The tenant has nothing under this id."),
        (405, "The address has no such method."),
        (413, "The body is too large."),
        (415, "The body is of a type this address does not take."),
        (429, "Too many requests: Retry-After says when to try again."),
    )
}
CONFLICT = {
    409: OpenApiResponse(ErrorOutput, description="A limit is reached, or the request contradicts what exists.")
}


class ApiView(APIView):
    """A view on behalf of the token's tenant and user.

    Every POST may come with an idempotency key. Where a service keeps the key with what it makes, as jobs do, the view
    says so by ``idempotent_by_itself``; a view whose answers hold a secret, by ``answers_secret``.
    """

    content_negotiation_class = FirstRenderer
    idempotent_by_itself = False
    answers_secret = False
    claimed: IdempotencyKey | None = None

    @property
    def tenant(self) -> Tenant:
        return cast(ApiToken, self.request.auth).tenant

    @property
    def user(self) -> User:
        return cast(User, self.request.user)

    def get_throttles(self) -> list[Any]:
        """The same ones for the whole request: its answer tells how they stand."""
        if not hasattr(self, "counted"):
            self.counted: list[Any] = super().get_throttles()
        return self.counted

    def throttled(self, request: Request, wait: float | None) -> NoReturn:
        counting = [throttle for throttle in self.get_throttles() if rate_headers(throttle)]
        refusing = getattr(request, "refused_by", None) or next(iter(counting))
        raise RateLimited(words=refusing.in_words, kind=refusing.limit_kind, limit=refusing.num_requests, wait=wait)

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        if request.method == "POST" and not self.idempotent_by_itself and (key := idempotency.read_key(request)):
            self.claimed = idempotency.begin(tenant=self.tenant, key=key, request=request)

    def handle_exception(self, exc: Exception) -> Response:
        return exc.response if isinstance(exc, idempotency.Replayed) else super().handle_exception(exc)

    def finalize_response(self, request: Request, response: Response, *args: Any, **kwargs: Any) -> Response:
        response = super().finalize_response(request, response, *args, **kwargs)
        if self.claimed is not None:
            idempotency.finish(self.claimed, response, secret=self.answers_secret)
        for throttle in getattr(self, "counted", []):
            # The token's own limit, unless it is the tenant's that refuses.
            if isinstance(throttle, TokenThrottle) or throttle is getattr(request, "refused_by", None):
                for name, value in rate_headers(throttle).items():
                    response[name] = value
        return response


class TenantListView(ApiView, ListAPIView[ModelT]):
    """A page of what ``select`` finds for the tenant, narrowed by ``query_serializer``."""

    query_serializer: type[ListQuery] = CreatedQuery
    ordering: tuple[str, ...] = ("-created_at", "-pk")
    """The first field must never be null: the cursor stands on it."""

    def select(self) -> QuerySet[ModelT]:
        raise NotImplementedError

    def get_queryset(self) -> QuerySet[ModelT]:
        if getattr(self, "swagger_fake_view", False):  # the schema is made without a request
            return cast(Any, self.serializer_class).Meta.model.objects.none()
        query = self.query_serializer(data=self.request.query_params)
        query.is_valid(raise_exception=True)
        return query.narrow(self.select())


def validated(serializer: Serializer[Any]) -> dict[str, Any]:
    """The serializer's checked data; raises DRF's ValidationError."""
    serializer.is_valid(raise_exception=True)
    return cast(dict[str, Any], serializer.validated_data)


@csrf_exempt
@login_not_required
def unknown_address(request: HttpRequest, rest: str) -> JsonResponse:
    """An address under the API that is none, in the API's error shape."""
    hint = HINTS[404] if rest.endswith("/") else "Addresses of the API end with a slash."
    return answer_plain(request, 404, "not_found", f"There is nothing at {request.path}.", hint)
