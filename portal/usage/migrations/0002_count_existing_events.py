from dataclasses import asdict

from django.db import migrations

from portal.usage.recording import COUNTED_TYPES, sum_events


def count_events(apps, schema_editor):
    """What jobs have spent so far, from their events."""
    records = apps.get_model("usage", "UsageRecord").objects
    events = apps.get_model("jobs", "JobEvent").objects
    for job in apps.get_model("jobs", "Job").objects.select_related("created_by").order_by("pk").iterator():
        counted = events.filter(job_id=job.pk, type__in=COUNTED_TYPES, seq__lte=job.last_seq).order_by("seq")
        records.bulk_create(
            records.model(
                tenant_id=job.tenant_id,
                job_id=job.pk,
                job_name=job.name,
                member_id=job.created_by_id,
                member_name=job.created_by.username if job.created_by else "",
                day=day,
                **asdict(spent),
            )
            for day, spent in sum_events(counted.iterator(chunk_size=500)).items()
        )


class Migration(migrations.Migration):
    dependencies = [("usage", "0001_initial")]

    operations = [migrations.RunPython(count_events, migrations.RunPython.noop)]
