import base64
import hashlib
import hmac
import time


def is_genuine(secret, headers, body):
    """Whether a call is from this portal: ``body`` are the bytes as received, ``secret`` begins with whsec_."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    fresh = abs(time.time() - int(headers["webhook-timestamp"])) < 300
    return fresh and any(hmac.compare_digest(expected, given) for given in headers["webhook-signature"].split())
