from django.urls import path

from portal.jobs import new_views, views

app_name = "jobs"
urlpatterns = [
    path("", views.job_list, name="list"),
    path("new/", new_views.job_new, name="new"),
    # Parts of the new-job page.
    path("new/preview/", new_views.job_preview, name="new-preview"),
    path("new/datasets/", new_views.dataset_choices, name="new-datasets"),
    path("new/rewards/", new_views.reward_choices, name="new-rewards"),
    path("<uuid:job_id>/", views.job_detail, name="detail"),
    path("<uuid:job_id>/pause/", views.job_pause, name="pause"),
    path("<uuid:job_id>/resume/", views.job_resume, name="resume"),
    path("<uuid:job_id>/cancel/", views.job_cancel, name="cancel"),
    path("<uuid:job_id>/steps/", views.job_steps, name="steps"),
    path("<uuid:job_id>/priority/", views.job_priority, name="priority"),
    # Parts of the job page, fetched again when the socket brings news.
    path("<uuid:job_id>/summary/", views.job_summary, name="summary"),
    path("<uuid:job_id>/rollouts/", views.job_rollouts, name="rollouts"),
    path("<uuid:job_id>/messages/", views.job_messages, name="messages"),
    path("<uuid:job_id>/adapters/", views.job_adapters, name="adapters"),
]
