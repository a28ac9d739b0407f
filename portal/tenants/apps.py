from typing import Any

from django.apps import AppConfig
from django.contrib.auth.signals import user_logged_in


class TenantsConfig(AppConfig):
    name = "portal.tenants"
    verbose_name = "Tenants"

    def ready(self) -> None:
        user_logged_in.connect(_record_email_address, dispatch_uid="portal.tenants.record_email_address")


def _record_email_address(sender: Any, user: Any, **kwargs: Any) -> None:
    from portal.tenants.services import record_email_address

    record_email_address(user=user)
