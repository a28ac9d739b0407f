"""An index for what looks at all jobs that have not ended, whoever's they are."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0006_list_indexes")]
    operations = [
        migrations.AddIndex("job", models.Index(fields=["status", "created_at"], name="job_by_status")),
    ]
