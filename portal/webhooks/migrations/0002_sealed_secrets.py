"""Secrets of endpoints are sealed at rest. Back again they are in clear."""

from django.db import migrations, models

from portal.sealing import get_sealer


def seal(apps, schema_editor):
    _change(apps, get_sealer().seal)


def unseal(apps, schema_editor):
    _change(apps, get_sealer().open)


def _change(apps, change):
    for endpoint in apps.get_model("webhooks", "Endpoint").objects.all():
        endpoint.secret = change(endpoint.secret)
        endpoint.old_secret = change(endpoint.old_secret) if endpoint.old_secret else ""
        endpoint.save(update_fields=["secret", "old_secret"])


class Migration(migrations.Migration):
    dependencies = [("webhooks", "0001_initial")]

    operations = [
        migrations.AlterField(
            model_name="endpoint",
            name="secret",
            field=models.TextField(help_text="Sealed."),
        ),
        migrations.AlterField(
            model_name="endpoint",
            name="old_secret",
            field=models.TextField(blank=True, help_text="Sealed. Signs too until old_secret_until."),
        ),
        migrations.RunPython(seal, unseal),
    ]
