from django.urls import path

from portal.webhooks import views

app_name = "webhooks"
urlpatterns = [
    path("notifications/", views.notifications, name="notifications"),
    path("webhooks/", views.endpoint_list, name="list"),
    path("webhooks/<uuid:endpoint_id>/", views.endpoint_detail, name="detail"),
    path("webhooks/<uuid:endpoint_id>/deliveries/", views.endpoint_deliveries, name="deliveries"),
    path("webhooks/<uuid:endpoint_id>/rotate/", views.endpoint_rotate, name="rotate"),
    path("webhooks/<uuid:endpoint_id>/switch/", views.endpoint_switch, name="switch"),
    path("webhooks/<uuid:endpoint_id>/ping/", views.endpoint_ping, name="ping"),
    path("webhooks/<uuid:endpoint_id>/delete/", views.endpoint_delete, name="delete"),
    path("webhooks/<uuid:endpoint_id>/deliveries/<uuid:delivery_id>/", views.delivery_detail, name="delivery"),
    path(
        "webhooks/<uuid:endpoint_id>/deliveries/<uuid:delivery_id>/redeliver/",
        views.delivery_redeliver,
        name="redeliver",
    ),
]
