"""Indexes for the operator's lists, newest first, and for what is removed once it is long over."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("webhooks", "0002_sealed_secrets")]
    operations = [
        migrations.AddIndex(model, models.Index(fields=fields, name=f"{model}_{name}"))
        for model in ("delivery", "mail")
        for fields, name in ((["-created_at", "-id"], "newest"), (["finished_at"], "finished"))
    ]
