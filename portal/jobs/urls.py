from django.urls import path

from portal.jobs import views

app_name = "jobs"
urlpatterns = [
    path("", views.job_list, name="list"),
    path("new/", views.job_new, name="new"),
    path("<uuid:job_id>/", views.job_detail, name="detail"),
    path("<uuid:job_id>/cancel/", views.job_cancel, name="cancel"),
    # Parts of the job page, fetched again when the socket brings news.
    path("<uuid:job_id>/summary/", views.job_summary, name="summary"),
    path("<uuid:job_id>/rollouts/", views.job_rollouts, name="rollouts"),
    path("<uuid:job_id>/messages/", views.job_messages, name="messages"),
    path("<uuid:job_id>/adapters/", views.job_adapters, name="adapters"),
]
