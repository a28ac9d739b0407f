"""ASGI entry point.

HTTP by Django behind a limit for large bodies, WebSockets by channels behind an origin check and the session.
"""

import os

from channels.auth import AuthMiddlewareStack
from channels.routing import ProtocolTypeRouter, URLRouter
from channels.security.websocket import AllowedHostsOriginValidator
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
http_application = get_asgi_application()

from portal.datasets.body_limit import BodyLimit  # noqa: E402 (needs the apps loaded)
from portal.engine_room.middleware import CountedSockets  # noqa: E402
from portal.live.routing import websocket_urlpatterns  # noqa: E402

application = ProtocolTypeRouter(
    {
        "http": BodyLimit(http_application),
        "websocket": AllowedHostsOriginValidator(CountedSockets(AuthMiddlewareStack(URLRouter(websocket_urlpatterns)))),
    }
)
