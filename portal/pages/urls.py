from django.urls import path

from portal.pages import search, views

urlpatterns = [
    path("", views.home, name="home"),
    path("search/", search.search, name="search"),
    path("home/live/", views.home_live, name="home-live"),
    path("home/sample/", views.home_sample, name="home-sample"),
]
