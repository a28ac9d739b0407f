from django.apps import AppConfig


class OpsConfig(AppConfig):
    name = "portal.ops"
    verbose_name = "Operations"
