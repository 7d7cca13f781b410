# SPDX-License-Identifier: GPL-2.0-or-later
"""The signature of a request to S3 or SNS: AWS Signature Version 4.

Pure. https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html has the steps. boto3's signer takes
several times as long, since it can sign any request.
"""

import datetime
import functools
import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlsplit

_ALGORITHM = "AWS4-HMAC-SHA256"
# The headers that proxies may change.
_UNSIGNED = frozenset({"User-Agent", "Expect"})
_CREDENTIAL = re.compile(
    rf"{_ALGORITHM} Credential=[^,]+/\d{{8}}/(?P<region>[^/,]+)/(?P<service>[^/,]+)/aws4_request, "
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SignatureScope:
    """The region and the service for which a request is signed."""

    region: str
    service: str

    @classmethod
    def of(cls, authorization: str) -> Self | None:
        """Return the scope that a header `Authorization` names, if it is of this version."""
        found = _CREDENTIAL.match(authorization)
        return None if found is None else cls(**found.groupdict())


def signed_headers(
    method: str,
    url: str,
    checksum: str,
    headers: Mapping[str, str],
    scope: SignatureScope,
    credentials: Any,
    now: float,
) -> dict[str, str]:
    """Return the headers of a request: those given and the signature's.

    The URL has no query and is quoted. `checksum` is the SHA-256 of the content, which S3 wants to see. `credentials` are frozen
    ones of boto3; `now` is in seconds since the epoch.
    """
    time = datetime.datetime.fromtimestamp(now, datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
    parts = urlsplit(url)
    found = {**headers, "X-Amz-Date": time}
    if scope.service == "s3":
        found["X-Amz-Content-SHA256"] = checksum
    if credentials.token:
        found["X-Amz-Security-Token"] = credentials.token
    signed = sorted([("host", parts.netloc), *((name.lower(), found[name]) for name in found if name not in _UNSIGNED)])
    names = ";".join([name for name, _ in signed])
    request = "\n".join([method, parts.path, "", *(f"{name}:{value}" for name, value in signed), "", names, checksum])
    place = f"{time[:8]}/{scope.region}/{scope.service}/aws4_request"
    key = _derive_key(credentials.secret_key, place)
    signature = _sign_text(key, f"{_ALGORITHM}\n{time}\n{place}\n{hashlib.sha256(request.encode()).hexdigest()}").hex()
    credential = f"{credentials.access_key}/{place}"
    found["Authorization"] = f"{_ALGORITHM} Credential={credential}, SignedHeaders={names}, Signature={signature}"
    return found


@functools.lru_cache(maxsize=16)
def _derive_key(secret: str, place: str) -> bytes:
    """Return the key for a day.

    The last ones are kept, since each of the four steps would let other threads run in the middle of a request.
    """
    key = f"AWS4{secret}".encode()
    for part in place.split("/"):
        key = _sign_text(key, part)
    return key


def _sign_text(key: bytes, text: str) -> bytes:
    return hmac.digest(key, text.encode(), "sha256")
