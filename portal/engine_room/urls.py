from django.urls import path

from portal.engine_room import views

app_name = "engine_room"
urlpatterns = [
    path("", views.overview, name="overview"),
    path("live/", views.live, name="live"),
    path("drain/", views.drain, name="drain"),
    path("resume/", views.resume, name="resume"),
    path("pools/<str:base_model_id>/", views.scale, name="scale"),
]
