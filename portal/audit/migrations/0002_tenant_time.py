"""An index for the days the log is narrowed to."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("audit", "0001_initial")]
    operations = [
        migrations.AddIndex("auditentry", models.Index(fields=["tenant_id", "time"], name="audit_tenant_time")),
    ]
