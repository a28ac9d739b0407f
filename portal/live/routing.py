from django.urls import path

from portal.live.consumers import JobConsumer, JobListConsumer

websocket_urlpatterns = [
    path("ws/jobs/", JobListConsumer.as_asgi()),
    path("ws/jobs/<uuid:job_id>/", JobConsumer.as_asgi()),
]
