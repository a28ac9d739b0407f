"""Template filters of pages that show rewards."""

from __future__ import annotations

from django import template

from portal.rewards.graders import TITLES

register = template.Library()


@register.filter
def grader_title(grader_type: str) -> str:
    """``exact_match`` -> ``Exact match``; a grader without a title is called by its type."""
    return TITLES[grader_type][0] if grader_type in TITLES else grader_type
