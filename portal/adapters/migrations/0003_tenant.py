"""Adapter versions name their tenant: a list of them looked at all jobs of the tenant before."""

import django.db.models.deletion
from django.db import migrations, models
from django.db.models import OuterRef, Subquery


def name_tenants(apps, schema_editor):
    job = apps.get_model("jobs", "Job").objects.filter(pk=OuterRef("job_id"))
    apps.get_model("adapters", "AdapterVersion").objects.update(tenant_id=Subquery(job.values("tenant_id")))


class Migration(migrations.Migration):
    dependencies = [("adapters", "0002_initial"), ("tenants", "0006_names")]
    operations = [
        migrations.AddField(
            "adapterversion",
            "tenant",
            models.ForeignKey(
                null=True,
                db_index=False,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="adapter_versions",
                to="tenants.tenant",
            ),
        ),
        migrations.RunPython(name_tenants, migrations.RunPython.noop),
    ]
