from django.apps import AppConfig


class TenantsConfig(AppConfig):
    name = "portal.tenants"
    verbose_name = "Tenants"
