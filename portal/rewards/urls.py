from django.urls import URLPattern

app_name = "rewards"
urlpatterns: list[URLPattern] = []
