"""What SQLite means to do for a query, read where a page has to cost the same however much there is."""

from __future__ import annotations

import pytest
from django.db import connection
from django.db.models import QuerySet

only_sqlite = pytest.mark.skipif(connection.vendor != "sqlite", reason="PostgreSQL plans by statistics")


def assert_follows_index(rows: QuerySet, index: str = "") -> None:
    """It reads no table from end to end and sorts nothing; with ``index`` it follows the one of this name."""
    plan = rows.explain()
    assert "SCAN" not in plan and "TEMP B-TREE" not in plan, plan
    assert "USING INDEX" in plan or "USING COVERING INDEX" in plan or "USING INTEGER PRIMARY KEY" in plan, plan
    assert index in plan, plan
