"""An authenticator app, as RFC 6238 says what it shows."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import time

from playwright.sync_api import Page, expect

PERIOD = 30


def code_now(secret: str) -> str:
    """The six digits of now, with enough of their time left to type them."""
    left = PERIOD - time.time() % PERIOD
    if left < 15:
        time.sleep(left)
    digest = hmac.digest(base64.b32decode(secret), int(time.time() // PERIOD).to_bytes(8, "big"), hashlib.sha1)
    start = digest[-1] & 0x0F
    return f"{(int.from_bytes(digest[start : start + 4], 'big') & 0x7FFFFFFF) % 1_000_000:06d}"


def set_up_second_factor(page: Page, password: str) -> None:
    """From the page of two-factor sign-in on; ends on the home page. Whose password is older confirms it."""
    page.get_by_role("link", name="Set up", exact=True).click()
    page.wait_for_url(re.compile("/activate/$|/reauthenticate/"))
    if "/reauthenticate/" in page.url:
        page.get_by_label("Your password").fill(password)
        page.get_by_role("button", name="Confirm").click()
    secret = page.locator("#totp-secret").inner_text()
    page.get_by_label("2. Enter the code the app shows").fill(code_now(secret))
    page.get_by_role("button", name="Turn on").click()
    expect(page.get_by_role("heading", name="Recovery codes")).to_be_visible()
    page.get_by_role("link", name="I have kept them").click()
