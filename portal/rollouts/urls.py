from django.urls import path

from portal.rollouts import views

app_name = "rollouts"
urlpatterns = [
    path("", views.group_list, name="list"),
    path("<int:seq>/", views.group_detail, name="group"),
    path("<int:seq>/<int:position>/", views.group_detail, name="episode"),
    path("<int:seq>/over-time/", views.prompt_over_time, name="over-time"),
]
