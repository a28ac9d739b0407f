from django.apps import AppConfig


class UsageConfig(AppConfig):
    name = "portal.usage"
    verbose_name = "Usage and quotas"
