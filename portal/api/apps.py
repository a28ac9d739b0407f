from django.apps import AppConfig


class ApiConfig(AppConfig):
    name = "portal.api"
    verbose_name = "REST API"
