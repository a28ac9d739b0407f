from django.apps import AppConfig


class AdaptersConfig(AppConfig):
    name = "portal.adapters"
    verbose_name = "Adapters"
