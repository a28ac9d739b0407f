from django.apps import AppConfig


class WebhooksConfig(AppConfig):
    name = "portal.webhooks"
    verbose_name = "Webhooks and notifications"
