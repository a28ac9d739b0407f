from django.apps import AppConfig


class PagesConfig(AppConfig):
    name = "portal.pages"
    verbose_name = "Pages"
