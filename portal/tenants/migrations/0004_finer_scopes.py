"""``write`` becomes the scopes it stood for, and ``read`` keeps the download of adapters it included."""

from django.db import migrations

WRITE = ["jobs:write", "datasets:write", "rewards:write", "adapters:read"]
READ = ["read", "adapters:read"]


def refine(apps, schema_editor):
    for token in apps.get_model("tenants", "ApiToken").objects.all():
        wanted = [scope for name in token.scopes for scope in {"write": WRITE, "read": READ}.get(name, [name])]
        token.scopes = list(dict.fromkeys(wanted))
        token.save(update_fields=["scopes"])


class Migration(migrations.Migration):
    dependencies = [("tenants", "0003_access")]
    operations = [migrations.RunPython(refine, migrations.RunPython.noop)]
