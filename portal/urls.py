"""All HTTP routes. Pages live in each app's urls.py; what needs no sign-in is listed here."""

from django.contrib import admin
from django.urls import include, path

from portal.adapters.download import download_adapter
from portal.engine_room.exposition import metrics
from portal.health import healthz, readyz

handler400 = "portal.failures.bad_request"
handler403 = "portal.failures.permission_denied"
handler404 = "portal.failures.not_found"
handler500 = "portal.failures.server_error"

urlpatterns = [
    path("healthz", healthz, name="healthz"),
    path("readyz", readyz, name="readyz"),
    path("metrics", metrics, name="metrics"),
    path("engine/", include("portal.engine_room.urls")),
    path("admin/", admin.site.urls),
    path("accounts/", include("allauth.urls")),
    path("api/v1/", include("portal.api.urls")),
    path("download/<str:token>", download_adapter, name="adapter-download"),
    path("", include("portal.pages.urls")),
    path("", include("portal.tenants.urls")),
    path("audit/", include("portal.audit.urls")),
    path("datasets/", include("portal.datasets.urls")),
    path("rewards/", include("portal.rewards.urls")),
    path("jobs/<uuid:job_id>/rollouts/", include("portal.rollouts.urls")),
    path("jobs/", include("portal.jobs.urls")),
    path("adapters/", include("portal.adapters.urls")),
    path("guides/", include("portal.api.guides")),
    path("usage/", include("portal.usage.urls")),
    path("", include("portal.webhooks.urls")),
    path("environments/", include("portal.environments.urls")),
]
