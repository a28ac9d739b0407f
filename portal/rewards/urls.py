from django.urls import path

from portal.rewards import trial_views, views

app_name = "rewards"
urlpatterns = [
    path("", views.reward_list, name="list"),
    path("new/", views.reward_new, name="new"),
    path("try/", trial_views.try_reward, name="try"),
    path("trials/<uuid:trial_id>/", trial_views.show_trial, name="trial"),
    path("trials/<uuid:trial_id>/cancel/", trial_views.cancel_trial, name="trial-cancel"),
    path("<uuid:reward_id>/", views.reward_detail, name="detail"),
    path("<uuid:reward_id>/changes/", views.reward_changes, name="changes"),
]
