from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema

from portal.api import serializers
from portal.api.filters import ListQuery
from portal.api.views.base import ERRORS, TenantListView
from portal.base_models.models import BaseModel
from portal.base_models.selectors import list_base_models


@extend_schema(summary="Base models on offer", responses={200: serializers.BaseModelOutput, **ERRORS})
class BaseModelsView(TenantListView[BaseModel]):
    serializer_class = serializers.BaseModelOutput
    query_serializer = ListQuery
    ordering = ("id",)

    def select(self) -> QuerySet[BaseModel]:
        return list_base_models()
