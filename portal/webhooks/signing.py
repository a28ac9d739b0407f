"""Signatures by the Standard Webhooks specification, version 1 (github.com/standard-webhooks/standard-webhooks).

What is signed is ``<webhook-id>.<webhook-timestamp>.<body>``, by HMAC-SHA256 with the secret's bytes.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Iterable

PREFIX = "whsec_"
SECRET_BYTES = 32


def make_secret() -> str:
    """``whsec_`` and 32 random bytes in base64."""
    return PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def sign(secret: str, message_id: str, timestamp: int, body: str) -> str:
    """``v1,`` and the signature in base64. ``timestamp`` in seconds since the epoch."""
    key = base64.b64decode(secret.removeprefix(PREFIX))
    digest = hmac.new(key, f"{message_id}.{timestamp}.{body}".encode(), hashlib.sha256).digest()
    return f"v1,{base64.b64encode(digest).decode()}"


def make_headers(signing_secrets: Iterable[str], message_id: str, timestamp: int, body: str) -> dict[str, str]:
    """The three headers; several secrets give several signatures, any of which a receiver may check."""
    signatures = [sign(secret, message_id, timestamp, body) for secret in signing_secrets]
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(signatures),
    }
