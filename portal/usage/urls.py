from django.urls import path

from portal.usage import views

app_name = "usage"
urlpatterns = [
    path("", views.overview, name="overview"),
    path("export.csv", views.export_csv, name="export"),
]
