from django.urls import URLPattern

app_name = "tenants"
urlpatterns: list[URLPattern] = []
