"""Fill the tables from the events that are there."""

from django.db import migrations

TOTALS = ("tokens_sampled", "tokens_trained", "accelerator_seconds", "reward_errors")
CHUNK = 500


def fill(apps, schema_editor):
    Job = apps.get_model("jobs", "Job")
    JobEvent = apps.get_model("jobs", "JobEvent")
    StepRecord = apps.get_model("progress", "StepRecord")
    EvaluationRecord = apps.get_model("progress", "EvaluationRecord")
    for job_id, last_seq in Job.objects.values_list("pk", "last_seq"):
        events = JobEvent.objects.filter(job_id=job_id, seq__lte=last_seq).order_by("seq")
        totals, records = dict.fromkeys(TOTALS, 0.0), []
        for event in events.filter(type="step").iterator(chunk_size=CHUNK):
            metrics = event.payload["metrics"]
            totals = {name: total + metrics.get(name, 0.0) for name, total in totals.items()}
            records.append(
                StepRecord(
                    job_id=job_id,
                    seq=event.seq,
                    step=event.payload["step"],
                    adapter_version=event.payload["adapter_version"],
                    time=event.time,
                    metrics=metrics,
                    **{f"total_{name}": total for name, total in totals.items()},
                )
            )
        StepRecord.objects.bulk_create(records, batch_size=CHUNK)
        EvaluationRecord.objects.bulk_create(
            [to_evaluation(EvaluationRecord, event) for event in events.filter(type="evaluation")], batch_size=CHUNK
        )


def to_evaluation(model, event):
    names = ("step", "adapter_version", "rows", "accuracy", "reward_mean")
    values = {name: event.payload[name] for name in names}
    best = event.payload.get("best", False)
    return model(job_id=event.job_id, seq=event.seq, time=event.time, best=best, **values)


class Migration(migrations.Migration):
    dependencies = [("progress", "0001_initial")]
    operations = [migrations.RunPython(fill, migrations.RunPython.noop, elidable=True)]
