"""Every adapter version names its tenant by now; indexes in the orders lists are read in."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("adapters", "0003_tenant")]
    operations = [
        migrations.AlterField(
            "adapterversion",
            "tenant",
            models.ForeignKey(
                db_index=False,
                help_text="The job's: lists of a tenant's versions follow an index instead of looking at all its jobs.",
                on_delete=django.db.models.deletion.CASCADE,
                related_name="adapter_versions",
                to="tenants.tenant",
            ),
        ),
        migrations.AddIndex(
            "adapterversion",
            models.Index(fields=["tenant", "-created_at", "-id"], name="adapter_newest_of_tenant"),
        ),
        migrations.AddIndex("adapterversion", models.Index(fields=["-created_at", "-id"], name="adapter_newest")),
        migrations.AddIndex(
            "adapterversion",
            models.Index(
                fields=["tenant", "-final", "-created_at", "size_bytes", "removed"],
                condition=models.Q(removed=False),
                name="adapter_kept_of_tenant",
            ),
        ),
    ]
