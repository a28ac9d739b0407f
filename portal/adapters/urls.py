from django.urls import URLPattern

app_name = "adapters"
urlpatterns: list[URLPattern] = []
