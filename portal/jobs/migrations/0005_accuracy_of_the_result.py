"""``accuracy`` becomes that of the job's result; what it held before, of the last version, is kept beside it."""

from django.db import migrations, models


def take_accuracy_of_results(apps, schema_editor):
    Job, JobEvent = apps.get_model("jobs", "Job"), apps.get_model("jobs", "JobEvent")
    for job in Job.objects.filter(accuracy__isnull=False).only("pk", "spec", "accuracy", "last_seq").iterator():
        events = JobEvent.objects.filter(job=job, seq__lte=job.last_seq).order_by("seq")
        evaluated = [e.payload for e in events.filter(type="evaluation") if e.payload["adapter_version"] is not None]
        finals = [e.payload["adapter_version"] for e in events.filter(type="adapter", payload__final=True)]
        by_version = {payload["adapter_version"]: payload["accuracy"] for payload in evaluated}
        best = [payload["accuracy"] for payload in evaluated if payload.get("best", True)]
        wants_last = job.spec.get("evaluation", {}).get("result") == "last"
        result = job.accuracy if wants_last or not evaluated else (best or [evaluated[0]["accuracy"]])[-1]
        if finals:
            result = by_version.get(finals[-1], result)
        Job.objects.filter(pk=job.pk).update(last_accuracy=job.accuracy, accuracy=result)


class Migration(migrations.Migration):
    dependencies = [("jobs", "0004_newest_first")]

    operations = [
        migrations.AddField(
            model_name="job",
            name="last_accuracy",
            field=models.FloatField(
                blank=True, null=True, help_text="Held-out, of the last adapter version evaluated."
            ),
        ),
        migrations.AlterField(
            model_name="job",
            name="accuracy",
            field=models.FloatField(
                blank=True,
                null=True,
                help_text="Held-out, of the job's result: its best adapter version so far, or the last one where its "
                "settings ask for that.",
            ),
        ),
        migrations.RunPython(take_accuracy_of_results, migrations.RunPython.noop),
    ]
