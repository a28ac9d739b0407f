from django.urls import path

from portal.rewards import views

app_name = "rewards"
urlpatterns = [
    path("", views.reward_list, name="list"),
    path("new/", views.reward_new, name="new"),
    path("<uuid:reward_id>/", views.reward_detail, name="detail"),
]
