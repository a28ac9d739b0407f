from django.urls import path

from portal.environments import views

app_name = "environments"
urlpatterns = [
    path("", views.overview, name="overview"),
    path("documents/<uuid:document_set_id>/delete/", views.documents_delete, name="documents-delete"),
    path("tokens/<uuid:environment_token_id>/replace/", views.token_replace, name="token-replace"),
    path("tokens/<uuid:environment_token_id>/delete/", views.token_delete, name="token-delete"),
]
