"""Secrets that have to be sent out again (signing secrets, tokens of tenants' servers), as they are kept at rest.

What is kept is ``sealed:`` and a Fernet token (AES-128-CBC and HMAC-SHA256; github.com/fernet/spec). The keys are
derived from ``MARLAAS_FIELD_KEYS``, secrets separated by commas of which the first one seals and all of them open, and
from ``SECRET_KEY`` after them; so with neither changed nothing needs to be set, and keys can be changed without a
break. Engine and portal need the same ones.

Invariants: what cannot be opened is an error, never an empty secret (whoever knows that could sign with it); text that
is not sealed, as older versions kept it, is read as it is.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

PREFIX = "sealed:"
FIELD_KEYS = "MARLAAS_FIELD_KEYS"
INFO = b"marlaas sealed fields, version 1"
"""Ties the derived keys to this use: they tell nothing of what SECRET_KEY signs."""
SHORTEST = 32
"""Characters of a secret that keys are derived from."""


class CannotOpen(Exception):
    """None of the keys is the one it was sealed with, or it was damaged."""


class Sealer:
    """Seals with the first of the secrets, opens with any."""

    def __init__(self, secrets: Sequence[str]) -> None:
        self._fernets = [Fernet(_derive(secret)) for secret in secrets]

    def seal(self, text: str) -> str:
        """Raises CannotOpen where there is no key."""
        if not self._fernets:
            raise CannotOpen(f"There is no key: set {FIELD_KEYS} or SECRET_KEY.")
        return PREFIX + self._fernets[0].encrypt(text.encode()).decode()

    def open(self, kept: str) -> str:
        """What was sealed; text that is not, as it is. Raises CannotOpen."""
        if not kept.startswith(PREFIX):
            return kept
        try:
            if not self._fernets:
                raise InvalidToken
            return MultiFernet(self._fernets).decrypt(kept.removeprefix(PREFIX)).decode()
        except InvalidToken:
            raise CannotOpen(
                f"It was sealed with another key; set {FIELD_KEYS} or SECRET_KEY to what they were when it was stored."
            ) from None

    def is_current(self, kept: str) -> bool:
        """Sealed, and with the first key."""
        try:
            self._fernets[0].decrypt(kept.removeprefix(PREFIX))
        except (InvalidToken, IndexError):
            return False
        return kept.startswith(PREFIX)


def split_keys(text: str) -> list[str]:
    """``MARLAAS_FIELD_KEYS`` as a list. Raises ValueError for secrets that are too short."""
    keys = [key.strip() for key in text.split(",") if key.strip()]
    if any(len(key) < SHORTEST for key in keys):
        raise ValueError(f"{FIELD_KEYS}: each secret must have at least {SHORTEST} characters")
    return keys


def read_sealer(var: Path, environ: Mapping[str, str] = os.environ) -> Sealer:
    """With the keys of this process's environment, and the secret key the portal made in ``var`` where none is set."""
    secrets = split_keys(environ.get(FIELD_KEYS, ""))
    secret_key, path = environ.get("SECRET_KEY", ""), var / "secret_key"
    if not secret_key and path.is_file():
        secret_key = path.read_text().strip()
    fallbacks = [key.strip() for key in environ.get("SECRET_KEY_FALLBACKS", "").split(",") if key.strip()]
    return Sealer([*secrets, *([secret_key] if secret_key else []), *fallbacks])


def _derive(secret: str) -> bytes:
    key = HKDF(algorithm=SHA256(), length=32, salt=None, info=INFO).derive(secret.encode())
    return base64.urlsafe_b64encode(key)
