from django.urls import path

from portal.audit import views

app_name = "audit"
urlpatterns = [
    path("", views.audit_list, name="list"),
    path("export.csv", views.audit_csv, name="csv"),
]
