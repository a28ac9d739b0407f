"""Reads of rollouts; every function takes a job, or jobs, that the caller has found for its tenant.

Every page of a list costs the same number of queries, however many rollouts a job has: pages follow a cursor (the seq
of the group), and filters that have to look into the text or the rewards look at ``WINDOW`` groups at most, of those
the other filters leave, then say how far they came.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Count, Max, OuterRef, Q, QuerySet, Subquery
from django.http import Http404

from portal.jobs.models import Job
from portal.rollouts.models import Episode, RolloutGroup

PAGE_SIZE = 20
WINDOW = 5_000
"""Groups that one page of a search looks at."""
OCCURRENCES = 200
"""Of one prompt in one job, at most so many are listed."""
RECENT = 500
"""Groups of a job in which prompts common to several jobs are looked for."""


@dataclass(frozen=True)
class Filters:
    """What a tenant wants to see. A group matches if one of its episodes does."""

    step: int | None = None
    min_reward: float | None = None
    max_reward: float | None = None
    errors: bool = False
    text: str = ""
    """In the prompt, or in an episode's completion or reason; upper and lower case alike."""
    prompt: str = ""
    """A ``prompt_digest``."""

    @property
    def searches(self) -> bool:
        """Episodes have to be looked at, not only an index."""
        return bool(self.text) or self.min_reward is not None or self.max_reward is not None

    @property
    def any(self) -> bool:
        return self != Filters()


@dataclass(frozen=True)
class Page:
    groups: list[RolloutGroup]
    """Newest first, with their episodes prefetched."""
    before: int | None
    """Cursor of the next page; None at the end."""
    searched_to: int | None
    """The step down to which a search came that did not fill its page; None where nothing is left to search."""


def list_groups(job: Job, filters: Filters, *, before: int | None = None, limit: int = PAGE_SIZE) -> Page:
    """The newest groups below the cursor ``before``."""
    top = min(before, job.last_seq + 1) if before is not None else job.last_seq + 1
    groups = _by_index(job, filters).filter(seq__lt=top).order_by("-seq")
    reached = _end_of_window(groups) if filters.searches else None
    if reached is not None:
        groups = groups.filter(seq__gte=reached[0])
    found = list(_searched(groups, filters).prefetch_related("episodes")[: limit + 1])
    if len(found) > limit:
        return Page(found[:limit], before=found[limit - 1].seq, searched_to=None)
    if reached is None:
        return Page(found, before=None, searched_to=None)
    return Page(found, before=reached[0], searched_to=reached[1])


def _end_of_window(groups: QuerySet[RolloutGroup]) -> tuple[int, int] | None:
    """Seq and step of the last group a search looks at now; None where it looks at all that are left."""
    edge = list(groups.values_list("seq", "step")[WINDOW - 1 : WINDOW + 1])
    return edge[0] if len(edge) == 2 else None


def _by_index(job: Job, filters: Filters) -> QuerySet[RolloutGroup]:
    """What is read in the order of an index, as far as it is wanted."""
    groups = RolloutGroup.objects.filter(job=job)
    if filters.step is not None:
        groups = groups.filter(step=filters.step)
    if filters.errors:
        groups = groups.filter(errors__gt=0)
    if filters.prompt:
        groups = groups.filter(prompt_digest=filters.prompt)
    return groups


def _searched(groups: QuerySet[RolloutGroup], filters: Filters) -> QuerySet[RolloutGroup]:
    """What a look at the episodes leaves.

    Each group's episodes are asked for by a scalar subquery, which PostgreSQL runs for one group after another, by the
    index: for an EXISTS it would rather read the episodes of all jobs.
    """
    if filters.min_reward is not None or filters.max_reward is not None:
        groups = groups.alias(rewarded=_first_of_group(_in_range(filters))).filter(rewarded__isnull=False)
    if filters.text:
        said = Episode.objects.filter(Q(completion__icontains=filters.text) | Q(reason__icontains=filters.text))
        asked = Q(prompt__icontains=filters.text)
        groups = groups.alias(said=_first_of_group(said)).filter(asked | Q(said__isnull=False))
    return groups


def _first_of_group(episodes: QuerySet[Episode]) -> Subquery:
    return Subquery(episodes.filter(group=OuterRef("pk")).order_by().values("pk")[:1])


def _in_range(filters: Filters) -> QuerySet[Episode]:
    episodes = Episode.objects.all()
    if filters.min_reward is not None:
        episodes = episodes.filter(reward__gte=filters.min_reward)
    if filters.max_reward is not None:
        episodes = episodes.filter(reward__lte=filters.max_reward)
    return episodes


def get_group(job: Job, seq: int) -> RolloutGroup:
    """With its episodes; raises Http404 where the job has no such group."""
    group = RolloutGroup.objects.filter(job=job, seq=seq).prefetch_related("episodes").first()
    if group is None:
        raise Http404("No such group.")
    return group


def neighbours(group: RolloutGroup) -> tuple[int | None, int | None]:
    """Seqs of the groups before and after it."""
    of_job = RolloutGroup.objects.filter(job_id=group.job_id)
    earlier = of_job.filter(seq__lt=group.seq).order_by("-seq").values_list("seq", flat=True).first()
    later = of_job.filter(seq__gt=group.seq).order_by("seq").values_list("seq", flat=True).first()
    return earlier, later


def count_occurrences(job: Job, groups: Sequence[RolloutGroup]) -> dict[str, int]:
    """How often the job has drawn the prompt of each of ``groups``, by digest."""
    digests = {group.prompt_digest for group in groups}
    found = RolloutGroup.objects.filter(job=job, prompt_digest__in=digests).order_by()
    return dict(found.values_list("prompt_digest").annotate(Count("pk")))


def list_occurrences(job: Job, digest: str) -> list[RolloutGroup]:
    """The times the job drew one prompt, in order: the first ones, and always the last. Without episodes."""
    groups = RolloutGroup.objects.filter(job=job, prompt_digest=digest)
    found = list(groups.order_by("seq")[:OCCURRENCES])
    last = groups.order_by("seq").last()
    if last is not None and last != found[-1]:
        found.append(last)
    return found


def summarize_steps(job: Job) -> dict[str, int | None]:
    """``first`` and ``last``: steps that have rollouts; None where there is none."""
    steps = RolloutGroup.objects.filter(job=job).values_list("step", flat=True)
    # Two looks at the ends of an index: one MIN and MAX together would read all of it.
    return {"first": steps.order_by("step", "seq").first(), "last": steps.order_by("-step", "-seq").first()}


@dataclass(frozen=True)
class SharedPrompt:
    """One prompt as several jobs answered it last."""

    digest: str
    prompt: str
    answer: str
    groups: list[RolloutGroup | None]
    """In the order of the jobs; None where a job never drew it."""


def shared_prompts(jobs: Sequence[Job], *, limit: int = 5) -> list[SharedPrompt]:
    """Prompts that at least two of the jobs have drawn, those that most of them have drawn first.

    Looked for among the latest ``RECENT`` groups of each job.
    """
    digests: list[str] = []
    for job in jobs:
        recent = RolloutGroup.objects.filter(job=job).order_by("-seq").values_list("prompt_digest", flat=True)
        digests = list(dict.fromkeys([*digests, *recent[:RECENT]]))
    latest = (
        RolloutGroup.objects.filter(job__in=jobs, prompt_digest__in=digests)
        .order_by()
        .values_list("prompt_digest", "job_id")
        .annotate(Max("seq"))
    )
    seqs: dict[str, dict[Any, int]] = {}
    for digest, job_id, seq in latest:
        seqs.setdefault(digest, {})[job_id] = seq
    order = {digest: index for index, digest in enumerate(digests)}
    shared = sorted((d for d in seqs if len(seqs[d]) > 1), key=lambda d: (-len(seqs[d]), order[d]))[:limit]
    wanted = Q(pk__in=[])
    for digest in shared:
        for job_id, seq in seqs[digest].items():
            wanted |= Q(job_id=job_id, seq=seq)
    groups = {
        (group.prompt_digest, group.job_id): group
        for group in RolloutGroup.objects.filter(wanted).prefetch_related("episodes")
    }
    found = []
    for digest in shared:
        row = [groups.get((digest, job.pk)) for job in jobs]
        shown = next(group for group in row if group)
        found.append(SharedPrompt(digest=digest, prompt=shown.prompt, answer=shown.answer, groups=row))
    return found
