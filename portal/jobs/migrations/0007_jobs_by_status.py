"""Indexes for what looks at the jobs of all tenants: those that have not ended, and the newest."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0006_list_indexes")]
    operations = [
        migrations.AddIndex("job", models.Index(fields=["status", "created_at"], name="job_by_status")),
        migrations.AddIndex("job", models.Index(fields=["-created_at", "-id"], name="job_newest")),
    ]
