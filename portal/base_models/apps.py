from django.apps import AppConfig


class BaseModelsConfig(AppConfig):
    name = "portal.base_models"
    verbose_name = "Base models"
