from django.urls import path

from portal.pages import search, views

urlpatterns = [
    path("", views.home, name="home"),
    path("search/", search.search, name="search"),
    path("home/jobs/", views.home_jobs, name="home-jobs"),
]
