"""Many rows at once, without what the ORM spends on every value: for projections that write thousands of rows a second.

Values are given as the model's fields take them. Times, UUIDs and JSON become what the database wants exactly as the
field does; every other value goes to the driver as it is. Signals, defaults and ``auto_now`` play no part: an INSERT
names every column but an automatic primary key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from django.db import DEFAULT_DB_ALIAS, connection, connections, models
from django.db.models.constants import OnConflict

ROWS_AT_ONCE = 500
Row = Sequence[Any]


def insert_rows(
    model: type[models.Model], names: Sequence[str], rows: Iterable[Row], *, ignore_conflicts: bool = False
) -> None:
    """INSERT ``rows``, each with the values of the fields ``names``; with ``ignore_conflicts`` those that break a
    unique constraint are left out."""
    prepared = _prepare(model, names, rows)
    if not prepared:
        return
    conflict = OnConflict.IGNORE if ignore_conflicts else None
    fields = _fields(model, names)
    suffix = connection.ops.on_conflict_suffix_sql(fields, conflict, [], [])
    statement = f"{_insert(model, fields, conflict)} ({_marks(len(names))}) {suffix}"
    with connection.cursor() as cursor:
        cursor.executemany(statement, prepared)


def insert_returning_ids(model: type[models.Model], names: Sequence[str], rows: Iterable[Row]) -> list[int]:
    """INSERT ``rows``; their automatic primary keys, in the order of the rows."""
    prepared = _prepare(model, names, rows)
    at_once = min(ROWS_AT_ONCE, (connection.features.max_query_params or 2**15) // len(names))
    insert = _insert(model, _fields(model, names), None)
    key = _column(_key(model))
    ids: list[int] = []
    with connection.cursor() as cursor:
        for start in range(0, len(prepared), at_once):
            some = prepared[start : start + at_once]
            marks = ", ".join([f"({_marks(len(names))})"] * len(some))
            cursor.execute(f"{insert} {marks} RETURNING {key}", [value for row in some for value in row])
            ids += [row[0] for row in cursor.fetchall()]
    return ids


def update_rows(model: type[models.Model], names: Sequence[str], objects: Iterable[models.Model]) -> None:
    """UPDATE the fields ``names`` of each object, found by its primary key."""
    key = _key(model)
    attributes = [field.attname for field in _fields(model, names)] + [key.attname]
    rows = _prepare(model, [*names, key.name], [[getattr(one, name) for name in attributes] for one in objects])
    if not rows:
        return
    table = connection.ops.quote_name(model._meta.db_table)
    changes = ", ".join(f"{_column(field)} = %s" for field in _fields(model, names))
    with connection.cursor() as cursor:
        cursor.executemany(f"UPDATE {table} SET {changes} WHERE {_column(key)} = %s", rows)


def _fields(model: type[models.Model], names: Sequence[str]) -> list[models.Field[Any, Any]]:
    return [model._meta.get_field(name) for name in names]  # type: ignore[misc]


def _key(model: type[models.Model]) -> models.Field[Any, Any]:
    assert model._meta.pk is not None
    return model._meta.pk


def _column(field: models.Field[Any, Any]) -> str:
    assert field.column
    return connection.ops.quote_name(field.column)


def _marks(count: int) -> str:
    return ", ".join(["%s"] * count)


def _insert(model: type[models.Model], fields: list[models.Field[Any, Any]], conflict: OnConflict | None) -> str:
    columns = ", ".join(_column(field) for field in fields)
    begin = connection.ops.insert_statement(on_conflict=conflict)
    return f"{begin} {connection.ops.quote_name(model._meta.db_table)} ({columns}) VALUES"


def _prepare(model: type[models.Model], names: Sequence[str], rows: Iterable[Row]) -> list[list[Any]]:
    """The rows as the database driver takes them."""
    prepared = [list(row) for row in rows]
    for column, field in enumerate(_fields(model, names)):
        convert = _converter(field)
        if convert:
            for row in prepared:
                if row[column] is not None:
                    row[column] = convert(row[column])
    return prepared


def _converter(field: models.Field[Any, Any]) -> Callable[[Any], Any] | None:
    """What makes a value that is not None the database's; None where it is so already."""
    target = field.target_field if isinstance(field, models.ForeignKey) else field
    database = connections[DEFAULT_DB_ALIAS]
    match target:
        case models.JSONField():
            return lambda value: database.ops.adapt_json_value(value, target.encoder)
        case models.UUIDField():
            return None if database.features.has_native_uuid_field else lambda value: value.hex
        case models.DateField():  # a DateTimeField is one
            return lambda value: target.get_db_prep_save(value, database)
    return None
