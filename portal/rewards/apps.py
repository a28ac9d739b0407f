from django.apps import AppConfig


class RewardsConfig(AppConfig):
    name = "portal.rewards"
    verbose_name = "Reward functions"
