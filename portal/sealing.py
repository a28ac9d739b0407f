"""The portal's keys for secrets at rest; how they are sealed is ``engine.spec.sealing``."""

from __future__ import annotations

from allauth.mfa.adapter import DefaultMFAAdapter
from django.conf import settings

from engine.spec.sealing import Sealer


def get_sealer() -> Sealer:
    return Sealer([*settings.FIELD_KEYS, settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS])


class SealingMFAAdapter(DefaultMFAAdapter):
    """Seeds of second factors (TOTP, recovery codes) are sealed too; one that cannot be opened admits nobody."""

    error_messages = {
        **DefaultMFAAdapter.error_messages,
        "incorrect_code": "The code is not right. An app shows a new one every 30 seconds, and each code works once.",
    }

    def encrypt(self, text: str) -> str:
        return get_sealer().seal(text)

    def decrypt(self, encrypted_text: str) -> str:
        return get_sealer().open(encrypted_text)
