from django.urls import path

from portal.pages import views

urlpatterns = [
    path("", views.home, name="home"),
    path("home/live/", views.home_live, name="home-live"),
    path("home/sample/", views.home_sample, name="home-sample"),
]
