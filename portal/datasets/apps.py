from django.apps import AppConfig


class DatasetsConfig(AppConfig):
    name = "portal.datasets"
    verbose_name = "Datasets"
