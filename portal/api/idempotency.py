"""``Idempotency-Key``: a request sent twice is carried out once.

The same key with the same request (its sender, address, query and body) gets the answer of the first time, for a day;
with another request, 409. While the first is being answered, or where it was cut off before its answer was stored, 409
too: it is never carried out a second time. An answer of 5xx or 429 frees the key. An answer that holds a secret is not
stored; sent again, such a request is told that it was carried out.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, cast

from django.conf import settings
from django.core.files.uploadedfile import UploadedFile
from django.db import IntegrityError, transaction
from django.utils import timezone
from rest_framework.parsers import JSONParser, MultiPartParser
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.models import IdempotencyKey
from portal.errors import Conflict, FieldError, InvalidInput
from portal.tenants.models import ApiToken, Tenant

HEADER = "Idempotency-Key"
KEPT = timedelta(days=1)
LONGEST = 200
CHUNK = 1024 * 1024


class Replayed(Exception):
    """The request was answered before; ``response`` is that answer."""

    def __init__(self, response: Response) -> None:
        super().__init__("answered before")
        self.response = response


def read_key(request: Request) -> str:
    """The key the request came with, or an empty text; raises InvalidInput."""
    key = request.headers.get(HEADER, "").strip()
    if len(key) > LONGEST or not key.isprintable():
        fault = FieldError(HEADER, f"must have at most {LONGEST} printable characters")
        raise InvalidInput("Nothing was done.", fields=[fault])
    return key


def begin(*, tenant: Tenant, key: str, request: Request) -> IdempotencyKey:
    """Claim the key for this request.

    Raises Replayed where it was answered before, Conflict where the key stands for another request or one without an
    answer.
    """
    fingerprint = _fingerprint(request)
    IdempotencyKey.objects.filter(tenant=tenant, created_at__lt=timezone.now() - KEPT).delete()
    try:
        with transaction.atomic():
            return IdempotencyKey.objects.create(tenant=tenant, key=key, request_sha256=fingerprint)
    except IntegrityError:
        earlier = IdempotencyKey.objects.filter(tenant=tenant, key=key).first()
    if earlier is None:
        raise Conflict("A request with this idempotency key has just failed.", hint="Try again.")
    if earlier.request_sha256 != fingerprint:
        raise Conflict(
            "This idempotency key was used for a different request.",
            hint="Use a new key for every request that is meant to do something else.",
        )
    if earlier.status is None:
        raise Conflict(
            "A request with this idempotency key is being answered, or was cut off.",
            hint="Try again in a moment. If it stays so, look whether it was carried out before using a new key.",
        )
    if earlier.secret:
        raise Conflict(
            "A request with this idempotency key was carried out; its answer held a secret and is not stored.",
            hint="Revoke what it made if the secret is lost, and use a new key.",
        )
    raise Replayed(Response(earlier.body, status=earlier.status, headers={"Idempotent-Replayed": "true"}))


def finish(claimed: IdempotencyKey, response: Response, *, secret: bool) -> None:
    """Store the answer, or free the key where it says that nothing was done for reasons that pass."""
    if response.status_code >= 500 or response.status_code == 429:
        claimed.delete()
        return
    keep_body = not (secret and response.status_code < 400)
    claimed.status, claimed.secret = response.status_code, not keep_body
    # As it is sent: with ids and times as text.
    claimed.body = json.loads(JSONRenderer().render(response.data) or b"null") if keep_body else None
    claimed.save(update_fields=["status", "secret", "body"])


def _fingerprint(request: Request) -> str:
    token = cast(ApiToken, request.auth)
    digest = hashlib.sha256()
    for part in (str(token.user_id), str(request.method), request.get_full_path()):
        digest.update(part.encode() + b"\0")
    for chunk in _body(request):
        digest.update(chunk)
    return digest.hexdigest()


def _body(request: Request) -> Iterator[bytes]:
    """The body's chunks; a view can read it afterwards all the same."""
    negotiator: Any = request.negotiator
    parser = negotiator.select_parser(request, request.parsers)
    if isinstance(parser, JSONParser):
        # Parsed first, since that has a limit. As it was sent, because a view may tell 1 from 1.0.
        yield repr(request.data).encode("utf-8", "surrogatepass")
    elif isinstance(parser, MultiPartParser):
        yield from _parts(request)
    else:
        yield from _raw(request)


def _parts(request: Request) -> Iterator[bytes]:
    """Without the boundary between them, which every client makes up anew."""
    for name, values in sorted(cast(Any, request.data).lists()):
        for value in values:
            yield name.encode() + b"\0"
            if isinstance(value, UploadedFile):
                yield str(value.name).encode() + b"\0"
                yield from value.chunks()
                value.seek(0)
            else:
                yield str(value).encode("utf-8", "surrogatepass")
            yield b"\0"


def _raw(request: Request) -> Iterator[bytes]:
    """Set aside on disk while it is read."""
    plain: Any = request._request
    aside: Any = tempfile.TemporaryFile(dir=settings.FILE_UPLOAD_TEMP_DIR)  # noqa: SIM115 (the request keeps it)
    while chunk := plain.read(CHUNK):
        aside.write(chunk)
        yield chunk
    aside.seek(0)
    plain._stream = aside
