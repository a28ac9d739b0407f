"""Indexes in the orders lists are read in: a page of jobs in one state sorted all of them before."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0004_newest_first")]
    operations = [
        migrations.RemoveIndex("job", "jobs_job_tenant__b114ab_idx"),
        migrations.RemoveIndex("job", "job_newest_of_tenant"),
        migrations.AddIndex("job", models.Index(fields=["tenant", "-created_at", "-id"], name="job_newest_of_tenant")),
        migrations.AddIndex(
            "job", models.Index(fields=["tenant", "status", "-created_at", "-id"], name="job_newest_of_status")
        ),
        migrations.AddIndex("job", models.Index(fields=["tenant", "status", "-finished_at"], name="job_last_finished")),
    ]
