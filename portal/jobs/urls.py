from django.urls import path

from portal.jobs import detail_views, new_views, views

app_name = "jobs"
urlpatterns = [
    path("", views.job_list, name="list"),
    path("compare/", detail_views.job_compare, name="compare"),
    path("new/", new_views.job_new, name="new"),
    # Parts of the new-job page.
    path("new/preview/", new_views.job_preview, name="new-preview"),
    path("new/datasets/", new_views.dataset_choices, name="new-datasets"),
    path("new/rewards/", new_views.reward_choices, name="new-rewards"),
    path("<uuid:job_id>/", detail_views.job_detail, name="detail"),
    path("<uuid:job_id>/pause/", views.job_pause, name="pause"),
    path("<uuid:job_id>/resume/", views.job_resume, name="resume"),
    path("<uuid:job_id>/cancel/", views.job_cancel, name="cancel"),
    path("<uuid:job_id>/steps/", views.job_steps, name="steps"),
    path("<uuid:job_id>/priority/", views.job_priority, name="priority"),
    # Parts of the job page, fetched again when the socket brings news.
    path("<uuid:job_id>/summary/", detail_views.job_summary, name="summary"),
    path("<uuid:job_id>/latest-rollouts/", detail_views.job_rollouts, name="rollouts"),
    path("<uuid:job_id>/messages/", detail_views.job_messages, name="messages"),
    path("<uuid:job_id>/adapters/", detail_views.job_adapters, name="adapters"),
    path("<uuid:job_id>/findings/", detail_views.job_findings, name="findings"),
    path("<uuid:job_id>/timeline/", detail_views.job_timeline, name="timeline"),
    path("<uuid:job_id>/metrics.csv", detail_views.job_metrics_csv, name="metrics-csv"),
]
