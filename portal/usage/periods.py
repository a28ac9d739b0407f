"""Calendar months in UTC, the periods usage is limited and shown by; and days, by which reward trials are limited."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from django.utils import timezone


@dataclass(frozen=True)
class Period:
    """One calendar month."""

    first: date

    @classmethod
    def of(cls, moment: datetime | None = None) -> Period:
        """The month of a moment, of now by default."""
        return cls((moment or timezone.now()).astimezone(UTC).date().replace(day=1))

    @classmethod
    def parse(cls, text: str) -> Period | None:
        """``2026-11`` -> November 2026; None for what is no month."""
        try:
            return cls(datetime.strptime(text, "%Y-%m").date())
        except ValueError:
            return None

    @property
    def following(self) -> Period:
        return Period((self.first + timedelta(days=32)).replace(day=1))

    @property
    def previous(self) -> Period:
        return Period((self.first - timedelta(days=1)).replace(day=1))

    @property
    def last(self) -> date:
        return self.following.first - timedelta(days=1)

    @property
    def resets_at(self) -> datetime:
        """When the next one begins, from 0."""
        return datetime.combine(self.following.first, datetime.min.time(), tzinfo=UTC)

    @property
    def days(self) -> list[date]:
        return [self.first + timedelta(days=n) for n in range((self.last - self.first).days + 1)]

    @property
    def is_current(self) -> bool:
        return self == Period.of()

    def __str__(self) -> str:
        return f"{self.first:%Y-%m}"


def today_until() -> tuple[datetime, datetime]:
    """When today began in UTC, and when it ends."""
    began = timezone.now().astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return began, began + timedelta(days=1)
