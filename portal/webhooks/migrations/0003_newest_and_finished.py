"""Indexes for the operator's lists, newest first, and for what is removed once it is long over."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("webhooks", "0002_sealed_secrets")]
    operations = [
        migrations.AddIndex(model, models.Index(fields=[field], name=f"{model}_{name}"))
        for model in ("delivery", "mail")
        for field, name in (("-created_at", "newest"), ("finished_at", "finished"))
    ]
