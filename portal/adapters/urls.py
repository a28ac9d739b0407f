from django.urls import path

from portal.adapters import views

app_name = "adapters"
urlpatterns = [
    path("", views.adapter_list, name="list"),
    path("<uuid:adapter_id>/", views.adapter_detail, name="detail"),
    path("<uuid:adapter_id>/download/", views.adapter_download, name="download"),
]
