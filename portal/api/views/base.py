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
from rest_framework.permissions import SAFE_METHODS
from rest_framework.request import Request
from rest_framework.serializers import Serializer
from rest_framework.views import APIView

from portal.api.errors import HINTS, RateLimited
from portal.api.serializers import ErrorOutput
from portal.api.throttling import ReadThrottle, WriteThrottle
from portal.tenants.models import ApiToken, Tenant

ModelT = TypeVar("ModelT", bound=Model)

ERRORS = {
    code: OpenApiResponse(ErrorOutput, description=text)
    for code, text in (
        (400, "Fields are wrong."),
        (401, "No valid token."),
        (403, "The token's scope or the user's role does not permit it."),
        (404, "The tenant has nothing under this id."),
        (429, "Too many requests."),
    )
}
CONFLICT = {
    409: OpenApiResponse(ErrorOutput, description="A limit is reached, or the request contradicts what exists.")
}


class ApiView(APIView):
    """A view on behalf of the token's tenant and user."""

    @property
    def tenant(self) -> Tenant:
        return cast(ApiToken, self.request.auth).tenant

    @property
    def user(self) -> User:
        return cast(User, self.request.user)

    def throttled(self, request: Request, wait: float | None) -> NoReturn:
        refused_by = getattr(request, "refused_by", None)
        if refused_by is not None:
            raise RateLimited(kind=refused_by.kind, rate=refused_by.rate, wait=wait, who=refused_by.who)
        throttle = ReadThrottle() if request.method in SAFE_METHODS else WriteThrottle()
        raise RateLimited(kind=throttle.kind, rate=throttle.get_rate() or "", wait=wait)


class TenantListView(ApiView, ListAPIView[ModelT]):
    """A page of what ``select`` finds for the tenant."""

    def select(self) -> QuerySet[ModelT]:
        raise NotImplementedError

    def get_queryset(self) -> QuerySet[ModelT]:
        if getattr(self, "swagger_fake_view", False):  # the schema is made without a request
            return cast(Any, self.serializer_class).Meta.model.objects.none()
        return self.select()


def validated(serializer: Serializer[Any]) -> dict[str, Any]:
    """The serializer's checked data; raises DRF's ValidationError."""
    serializer.is_valid(raise_exception=True)
    return cast(dict[str, Any], serializer.validated_data)


@csrf_exempt
@login_not_required
def unknown_address(request: HttpRequest, rest: str) -> JsonResponse:
    """An address under the API that is none, in the API's error shape."""
    hint = HINTS[404] if rest.endswith("/") else "Addresses of the API end with a slash."
    message = f"There is nothing at {request.path}."
    return JsonResponse({"error": {"code": "not_found", "message": message, "fields": [], "hint": hint}}, status=404)
