"""Template filters of pages that show rewards."""

from __future__ import annotations

from django import template

from portal.rewards.graders import KINDS

register = template.Library()


@register.filter
def grader_title(grader_type: str) -> str:
    """``exact_match`` -> ``Exact match``; one that is no more is called by its type."""
    return KINDS[grader_type].title if grader_type in KINDS else grader_type
