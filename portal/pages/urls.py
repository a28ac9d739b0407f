from django.urls import path

from portal.pages import views

urlpatterns = [
    path("", views.home, name="home"),
    path("home/jobs/", views.home_jobs, name="home-jobs"),
]
