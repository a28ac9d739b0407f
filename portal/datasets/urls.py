from django.urls import path

from portal.datasets import upload_views, views

app_name = "datasets"
urlpatterns = [
    path("", views.dataset_list, name="list"),
    path("new/", upload_views.dataset_new, name="new"),
    path("uploads/<uuid:upload_id>/", upload_views.dataset_upload, name="upload"),
    path("uploads/<uuid:upload_id>/preview/", upload_views.upload_preview, name="upload-preview"),
    path("uploads/<uuid:upload_id>/progress/", upload_views.upload_progress, name="upload-progress"),
    path("uploads/<uuid:upload_id>/errors.csv", upload_views.upload_errors, name="upload-errors"),
    path("uploads/<uuid:upload_id>/text/", upload_views.upload_text, name="upload-text"),
    path("uploads/<uuid:upload_id>/delete/", upload_views.upload_delete, name="upload-delete"),
    path("<uuid:dataset_id>/", views.dataset_detail, name="detail"),
    path("<uuid:dataset_id>/archive/", views.dataset_archive, name="archive"),
    path("<uuid:dataset_id>/restore/", views.dataset_restore, name="restore"),
    path("<uuid:dataset_id>/delete/", views.dataset_delete, name="delete"),
    path("<uuid:dataset_id>/versions/<uuid:version_id>/lengths/", views.dataset_lengths, name="lengths"),
    path("<uuid:dataset_id>/versions/<uuid:version_id>/rows.jsonl", views.dataset_rows, name="rows"),
]
