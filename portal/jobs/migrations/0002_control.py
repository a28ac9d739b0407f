"""What a tenant wants of a job, as a whole with a revision, instead of a cancel request alone."""

import django.db.models.deletion
from django.db import migrations, models


def carry_over(apps, schema_editor):
    """A request to cancel becomes the first revision, to be sent again; the steps wanted are those there are.

    Each row is updated once: after a second time PostgreSQL checks its foreign keys at the end of the transaction, and
    lets no column be removed before that.
    """
    asked = models.Q(cancel_requested_at__isnull=False)
    apps.get_model("jobs", "Job").objects.update(
        wanted_steps=models.F("steps"),
        wants_cancelled=models.Case(models.When(asked, then=models.Value(True)), default=models.Value(False)),
        control_revision=models.Case(models.When(asked, then=models.Value(1)), default=models.Value(0)),
    )


class Migration(migrations.Migration):
    dependencies = [
        ("adapters", "0002_initial"),
        ("jobs", "0001_initial"),
    ]

    operations = [
        migrations.AlterField(
            model_name="job",
            name="status",
            field=models.CharField(
                choices=[
                    ("queued", "Queued"),
                    ("preparing", "Preparing"),
                    ("running", "Running"),
                    ("paused", "Paused"),
                    ("succeeded", "Succeeded"),
                    ("failed", "Failed"),
                    ("cancelled", "Cancelled"),
                ],
                default="queued",
                max_length=20,
            ),
        ),
        migrations.AddField(
            model_name="job",
            name="start_from",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="+",
                to="adapters.adapterversion",
            ),
        ),
        migrations.AddField(
            model_name="job",
            name="control_revision",
            field=models.PositiveIntegerField(default=0, help_text="Counts the changes; 0 as submitted."),
        ),
        migrations.AddField(
            model_name="job",
            name="wants_paused",
            field=models.BooleanField(default=False),
        ),
        migrations.AddField(
            model_name="job",
            name="wants_cancelled",
            field=models.BooleanField(default=False),
        ),
        migrations.AddField(
            model_name="job",
            name="wanted_priority",
            field=models.SmallIntegerField(default=0),
        ),
        migrations.AddField(
            model_name="job",
            name="wanted_steps",
            field=models.PositiveIntegerField(default=1, help_text="In all."),
            preserve_default=False,
        ),
        migrations.AddField(
            model_name="job",
            name="control_sent_at",
            field=models.DateTimeField(blank=True, help_text="Empty: this revision was never sent.", null=True),
        ),
        migrations.AddField(
            model_name="job",
            name="priority",
            field=models.SmallIntegerField(default=0),
        ),
        migrations.AddField(
            model_name="job",
            name="applied_revision",
            field=models.PositiveIntegerField(default=0, help_text="Of the control the engine goes by."),
        ),
        migrations.RunPython(carry_over, migrations.RunPython.noop),
        migrations.RemoveField(model_name="job", name="cancel_requested_at"),
        migrations.RemoveField(model_name="job", name="cancel_sent_at"),
    ]
