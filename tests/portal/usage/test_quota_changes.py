"""Quotas as admins change them, with a reason, and as members see them."""

from __future__ import annotations

import uuid

import pytest
from django.contrib.auth import get_user_model

from portal.audit.models import AuditEntry
from portal.errors import InvalidInput, NotAllowed
from portal.tenants.models import Tenant
from portal.usage.enforcement import enforce_quotas
from portal.usage.models import QuotaChange
from portal.usage.services import change_quotas
from tests.portal.usage.test_quotas import limit, spend_now
from tests.portal.usage.test_usage import spend


@pytest.fixture
def admin(db):
    return get_user_model().objects.create_superuser("root", "root@example.org", "correct horse battery")


# --- changes ---------------------------------------------------------------------------------------------------------


def test_admins_change_quotas_with_a_reason(ours, admin):
    change = change_quotas(
        tenant=ours.tenant,
        user=admin,
        reason=" Paid for more. ",
        limits={"max_active_jobs": 9, "max_sampled_tokens": 5},
    )
    ours.tenant.refresh_from_db()
    assert (ours.tenant.max_active_jobs, ours.tenant.quotas.max_sampled_tokens) == (9, 5)
    assert (change.reason, change.changed_by_name) == ("Paid for more.", "root")
    assert change.before == {"max_active_jobs": 4, "max_sampled_tokens": None}
    assert change.after == {"max_active_jobs": 9, "max_sampled_tokens": 5}
    assert change_quotas(tenant=ours.tenant, user=admin, reason="again", limits={"max_active_jobs": 9}) is None


@pytest.mark.parametrize(
    ("limits", "reason", "field"),
    [
        ({"max_active_jobs": 1}, " ", "reason"),
        ({"max_active_jobs": None}, "why", "max_active_jobs"),
        ({"max_queued_jobs": -1}, "why", "max_queued_jobs"),
        ({"max_queued_jobs": 2**31}, "why", "max_queued_jobs"),
        ({"weight": 1}, "why", "weight"),
    ],
)
def test_wrong_changes_are_refused(ours, admin, limits, reason, field):
    with pytest.raises(InvalidInput) as refused:
        change_quotas(tenant=ours.tenant, user=admin, reason=reason, limits=limits)
    assert refused.value.fields[0].field == field
    assert not QuotaChange.objects.exists()


def test_owners_cannot_change_quotas(ours):
    with pytest.raises(NotAllowed):
        change_quotas(tenant=ours.tenant, user=ours.user, reason="please", limits={"max_active_jobs": 9})


def test_the_admin_page_asks_for_a_reason(client, ours, admin):
    client.force_login(admin, backend="django.contrib.auth.backends.ModelBackend")
    fields = {
        "max_active_jobs": 6,
        "max_dataset_bytes": 10_000,
        "max_dataset_rows": 100,
        "max_reward_trials_per_day": 500,
        "max_sampled_tokens": 1000,
    }
    address = f"/admin/usage/tenantquotas/{ours.tenant.pk}/change/"
    refused = client.post(address, fields)
    assert refused.status_code == 200 and "This field is required" in refused.content.decode()
    assert client.post(address, {**fields, "reason": "Trial."}).status_code == 302
    ours.tenant.refresh_from_db()
    assert (ours.tenant.max_active_jobs, ours.tenant.quotas.max_sampled_tokens) == (6, 1000)
    page = client.get(address)
    assert 'name="max_active_jobs" value="6"' in page.content.decode()
    tenant = client.get(f"/admin/tenants/tenant/{ours.tenant.pk}/change/").content.decode()
    assert 'name="max_active_jobs"' not in tenant and 'name="weight"' in tenant


def test_quotas_nobody_changed_yet_start_from_the_tenants_own_limits(client, ours, admin):
    """A form that starts from the defaults would set back what was given to the tenant when it was made."""
    client.force_login(admin, backend="django.contrib.auth.backends.ModelBackend")
    Tenant.objects.filter(pk=ours.tenant.pk).update(max_active_jobs=17)
    page = client.get(f"/admin/usage/tenantquotas/{ours.tenant.pk}/change/").content.decode()
    assert 'name="max_active_jobs" value="17"' in page
    assert (
        f"/admin/usage/tenantquotas/{ours.tenant.pk}/change/" in client.get("/admin/tenants/tenant/").content.decode()
    )
    assert client.get("/admin/usage/tenantquotas/add/").status_code == 403
    for nobody in (uuid.uuid4(), "x"):
        assert client.get(f"/admin/usage/tenantquotas/{nobody}/change/").status_code == 302, "back to the index"


# --- shown -----------------------------------------------------------------------------------------------------------


def test_the_page_shows_meters_and_why_quotas_changed(browser, ours, admin):
    change_quotas(tenant=ours.tenant, user=admin, reason="Trial.", limits={"max_sampled_tokens": 1000})
    spend_now(ours.job, spend(2, sampled=900))
    enforce_quotas()
    page = browser.get("/usage/").content.decode()
    assert "900 of 1,000" in page and "meter--warning" in page and "Starts anew on 1 " in page
    assert "Trial." in page and "no limit → 1,000" in page
    assert "80 % of the quota was passed" in page


def test_the_home_page_shows_what_is_limited(browser, ours):
    limit(ours, max_sampled_tokens=1000)
    spend_now(ours.job, spend(2, sampled=1000))
    page = browser.get("/").content.decode()
    assert "1,000 of 1,000" in page and "Used up" in page
    assert "Trained tokens" not in page


def test_the_api_shows_quotas(api, ours):
    limit(ours, max_sampled_tokens=1000, max_steps_per_job=50)
    spend_now(ours.job, spend(2, sampled=900))
    answer = api.get("/api/v1/quotas/").json()
    (found,) = [each for each in answer["meters"] if each["kind"] == "sampled_tokens"]
    assert (found["used"], found["limit"], found["level"]) == (900, 1000, "warning") and found["resets_at"]
    assert answer["limits"]["max_steps_per_job"] == 50


def test_the_tenant_s_own_api_rate(api, ours, theirs):
    limit(ours, max_api_requests_per_minute=2)
    assert [api.get("/api/v1/jobs/").status_code for _ in range(3)] == [200, 200, 429]
    answer = api.post("/api/v1/jobs/", {}, "application/json")
    assert answer.status_code == 429 and int(answer["Retry-After"]) >= 1
    assert "All API tokens of a tenant together may make 2" in answer.json()["error"]["message"]


def test_an_estimate_tells_what_is_left(api, ours):
    limit(ours, max_sampled_tokens=10, max_steps_per_job=3)
    spend_now(ours.job, spend(2, sampled=10))
    body = {
        "base_model": ours.job.base_model_id,
        "dataset_version": str(ours.dataset_version.pk),
        "reward_version": str(ours.reward_version.pk),
        "settings": {"training": {"steps": 4}},
    }
    answer = api.post("/api/v1/jobs/estimate/", body, "application/json").json()
    said = " ".join(check["message"] for check in answer["checks"])
    assert "Sampled tokens: 10 of 10 are used" in said and "Steps of one job" in said
    assert answer["can_start"] is False


def test_changes_and_stops_are_in_the_audit_log(ours, admin):
    change_quotas(tenant=ours.tenant, user=admin, reason="Trial.", limits={"max_sampled_tokens": 10})
    spend_now(ours.job, spend(2, sampled=10))
    enforce_quotas()
    entries = AuditEntry.objects.filter(tenant_id=ours.tenant.pk)
    changed = entries.get(action="quotas.changed")
    assert (changed.reason, changed.actor_label) == ("Trial.", "root")
    assert changed.after == {"limits": ["sampled tokens a month: 10"]}
    stopped = entries.get(action="job.paused")
    assert (stopped.actor_kind, stopped.object_id) == ("system", str(ours.job.pk)) and "used up" in stopped.reason
