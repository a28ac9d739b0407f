"""Fill the tables from the events that are there."""

import hashlib
from statistics import fmean

from django.db import migrations

FIELDS = (
    "completion",
    "reward",
    "parts",
    "reason",
    "error",
    "advantage",
    "tokens",
    "truncated",
    "adapter_version",
)
CHUNK = 500


def fill(apps, schema_editor):
    Job = apps.get_model("jobs", "Job")
    JobEvent = apps.get_model("jobs", "JobEvent")
    RolloutGroup = apps.get_model("rollouts", "RolloutGroup")
    Episode = apps.get_model("rollouts", "Episode")
    for job_id, last_seq in Job.objects.values_list("pk", "last_seq"):
        events = JobEvent.objects.filter(job_id=job_id, type="rollout", seq__lte=last_seq).order_by("seq")
        after = 0
        while chunk := list(events.filter(seq__gt=after)[:CHUNK]):
            groups = RolloutGroup.objects.bulk_create([to_group(RolloutGroup, event) for event in chunk])
            Episode.objects.bulk_create(
                [
                    Episode(group=group, position=position, **{name: episode[name] for name in FIELDS})
                    for group, event in zip(groups, chunk, strict=True)
                    for position, episode in enumerate(event.payload["episodes"], start=1)
                ],
                batch_size=CHUNK,
            )
            after = chunk[-1].seq


def to_group(model, event):
    payload = event.payload
    episodes = payload["episodes"]
    digest = hashlib.sha256(f"{payload['prompt']}\0{payload['answer']}".encode()).hexdigest()[:32]
    return model(
        job_id=event.job_id,
        seq=event.seq,
        time=event.time,
        step=payload["step"],
        row=payload["row"],
        prompt=payload["prompt"],
        answer=payload["answer"],
        prompt_digest=digest,
        size=len(episodes),
        reward_mean=fmean(episode["reward"] for episode in episodes) if episodes else None,
        errors=sum(episode["error"] for episode in episodes),
    )


class Migration(migrations.Migration):
    dependencies = [("rollouts", "0001_initial")]
    operations = [migrations.RunPython(fill, migrations.RunPython.noop, elidable=True)]
