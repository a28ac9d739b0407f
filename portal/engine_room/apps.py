from django.apps import AppConfig


class EngineRoomConfig(AppConfig):
    name = "portal.engine_room"
    verbose_name = "Engine room"
