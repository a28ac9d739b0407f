from django.urls import path

from portal.tenants import views

app_name = "tenants"
urlpatterns = [
    path("tokens/", views.token_list, name="tokens"),
    path("tokens/<uuid:token_id>/revoke/", views.token_revoke, name="token-revoke"),
    path("members/", views.member_list, name="members"),
    path("tenants/<uuid:tenant_id>/switch/", views.tenant_switch, name="switch"),
]
