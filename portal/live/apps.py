from django.apps import AppConfig


class LiveConfig(AppConfig):
    name = "portal.live"
    verbose_name = "Live updates"
