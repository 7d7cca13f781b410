# SPDX-License-Identifier: GPL-2.0-or-later
"""One webhook request: signed, sent to a checked address, and its answer judged.

Signatures follow Standard Webhooks 1.0: `webhook-id` stays the same over all attempts, `webhook-timestamp` is the attempt's, and
`webhook-signature` holds one `v1,` signature per secret. Redirects are not followed. No proxy is used.
"""

import base64
import enum
import hashlib
import hmac
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

import urllib3

from hgext.vcsreplicator.words.retry import read_retry_after
from hgext.vcsreplicator.words.version import VERSION

from ...clients.authorities import trusting
from ...clients.http.connection import CONNECT_PATIENCE, ConnectionPool, RunningAnswers, TlsPool, finish, watching
from .addresses import Forbidden, IpNetwork, resolve
from .deliveries import DeliveryAttempt
from .subscription import Subscription

# Statuses that another attempt would get again.
PERMANENT = {300, 301, 302, 303, 304, 307, 308, 400, 405, 406, 411, 413, 414, 415, 422, 431, 501, 505}

# Addresses whose connections stay open: those used last, so that a process does not reach its limit of open files.
POOLS_KEPT = 50

# Addresses of a host that are tried: each may take `CONNECT_PATIENCE`, and a worker, without an end to how many a host names.
ADDRESSES_TRIED = 4

# Nothing was sent: another address of the same host may answer.
NOT_CONNECTED = (urllib3.exceptions.NewConnectionError, urllib3.exceptions.ConnectTimeoutError)


# Bytes of an answer that are kept.
ANSWER_KEPT = 4096

# Characters of a signed notice: many servers take no header over 8 KB, and would refuse the message for it.
SIGNED_HEADER = 8000

# The reason to pause a subscription whose URL has http where that is not allowed.
HTTP_REFUSED = "http is not allowed; set allow-http = true or use an https URL, then resume the subscription"


class DeliveryVerdict(enum.StrEnum):
    """The consequence of an attempt for the delivery.

    GONE: nothing can be sent to this endpoint before an operator changes something.
    """

    DELIVERED = "delivered"
    AGAIN = "again"
    WRONG = "wrong"
    GONE = "gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptResult:
    """How an attempt ended.

    `wait` is what the endpoint asked for, and `duration` what the attempt took, in seconds. `answer` is how the body of the answer
    begins: untrusted text.
    """

    verdict: DeliveryVerdict
    status: int | None = None
    error: str | None = None
    wait: float = 0.0
    duration: float = 0.0
    answer: str = ""


def signed_headers(outgoing: DeliveryAttempt, keys: Sequence[bytes], now: float) -> dict[str, str]:
    """Return the headers of Standard Webhooks; without keys there is no signature."""
    # Without dots, which separate the parts of what is signed.
    identity, timestamp = outgoing.message_id.replace(".", "_"), str(int(now))
    content = f"{identity}.{timestamp}.{outgoing.body}".encode()
    signatures = ["v1," + base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode() for key in keys]
    headers = {"webhook-id": identity, "webhook-timestamp": timestamp}
    return {**headers, "webhook-signature": " ".join(signatures)} if signatures else headers


def headers(outgoing: DeliveryAttempt, subscription: Subscription, keys: Sequence[bytes], now: float) -> dict[str, str]:
    """Return all headers of the request; the subscription's own cannot replace ours."""
    found = {
        "user-agent": f"vcsreplicator/{VERSION}",
        **{name.lower(): value for name, value in (subscription.headers or {}).items()},
        "host": urlsplit(subscription.url).netloc,
        "content-type": "application/json",
        "vcsreplicator-id": outgoing.message_id,
        "vcsreplicator-repository": outgoing.repository,
        "vcsreplicator-sequence": str(outgoing.sequence),
        "vcsreplicator-attempt": str(outgoing.attempt + 1),
        **signed_headers(outgoing, keys, now),
    }
    if outgoing.previous is not None:
        found["vcsreplicator-previous"] = outgoing.previous
    if outgoing.replay:
        found["vcsreplicator-replay"] = outgoing.replay.encode("ascii", "replace").decode()
    if outgoing.signed is not None and len(outgoing.signed) <= SIGNED_HEADER:
        found["vcsreplicator-signed"] = outgoing.signed
    return found


def judge(status: int, answer_headers: Mapping[str, str], now: float) -> AttemptResult:
    """Return what a complete answer means."""
    if 200 <= status < 300:
        return AttemptResult(verdict=DeliveryVerdict.DELIVERED, status=status)
    if status == 410:
        return AttemptResult(verdict=DeliveryVerdict.GONE, status=status, error="410: the endpoint is gone")
    if status in PERMANENT:
        return AttemptResult(
            verdict=DeliveryVerdict.WRONG, status=status, error=f"{status}: another attempt would get the same answer"
        )
    wait = read_retry_after(answer_headers.get("retry-after"), now)
    return AttemptResult(verdict=DeliveryVerdict.AGAIN, status=status, error=f"status {status}", wait=wait)


class RequestSender:
    """Sends requests and keeps connections open; used by many threads."""

    def __init__(
        self, *, networks: Sequence[IpNetwork], allow_http: bool, ca_file: str | None = None, kept: int = POOLS_KEPT
    ) -> None:
        """Keep connections to at most `kept` addresses.

        Raises Unavailable if `ca_file` cannot be read.
        """
        self._networks, self._allow_http, self._tls, self._kept = networks, allow_http, trusting(ca_file), kept
        self._pools: OrderedDict[tuple[str, str, str, int], urllib3.HTTPConnectionPool] = OrderedDict()
        self._lock = threading.Lock()
        self._running = RunningAnswers()

    def send(
        self, outgoing: DeliveryAttempt, subscription: Subscription, keys: Sequence[bytes], now: float
    ) -> AttemptResult:
        """Make one attempt and return its result.

        If no answer comes in time, the outcome is unknown, and the attempt is to be repeated.
        """
        if not (subscription.is_https or self._allow_http):
            return AttemptResult(verdict=DeliveryVerdict.GONE, error=HTTP_REFUSED)
        parts = urlsplit(subscription.url)
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        patience = urllib3.Timeout(connect=min(CONNECT_PATIENCE, subscription.timeout), read=subscription.timeout)
        try:
            addresses = resolve(host, port, self._networks)[:ADDRESSES_TRIED]
            for number, address in enumerate(addresses, 1):
                try:
                    response = self._find_pool(parts.scheme, host, address, port).urlopen(
                        subscription.method,
                        target,
                        body=outgoing.body.encode(),
                        headers=headers(outgoing, subscription, keys, now),
                        redirect=False,
                        retries=False,
                        assert_same_host=False,
                        preload_content=False,
                        timeout=patience,
                    )
                except NOT_CONNECTED:
                    if number == len(addresses):
                        raise
                    continue
                with watching(response):
                    answer = judge(response.status, response.headers, now)
                    return replace(answer, answer=finish(response, ANSWER_KEPT).decode("utf-8", "replace"))
            raise OSError("no address")
        except Forbidden as error:  # a name may have another address the next time
            return AttemptResult(verdict=DeliveryVerdict.AGAIN, error=str(error))
        except (urllib3.exceptions.HTTPError, OSError, UnicodeError) as error:
            text = str(error).rpartition(": ")[2] or type(error).__name__
            return AttemptResult(verdict=DeliveryVerdict.AGAIN, error=f"{type(error).__name__}: {text}"[:300])

    def close(self) -> None:
        """Close the connections; an attempt under way is cut, and is to be repeated."""
        self._running.cut()
        with self._lock:
            for pool in self._pools.values():
                pool.close()
            self._pools.clear()

    def _find_pool(self, scheme: str, host: str, address: str, port: int) -> urllib3.HTTPConnectionPool:
        """Return the connections to this address in the name of this host.

        Beyond `kept` pools, the pool used longest ago is forgotten, and closes its connections once it has no request under way.
        """
        key = (scheme, host, address, port)
        with self._lock:
            pool = self._pools.get(key)
            if pool is None:
                if len(self._pools) >= self._kept:
                    self._pools.popitem(last=False)
                tls: dict[str, Any] = {"ssl_context": self._tls, "server_hostname": host, "assert_hostname": host}
                if scheme == "http":
                    pool = ConnectionPool(address, port, maxsize=16, running=self._running)
                else:
                    pool = TlsPool(address, port, maxsize=16, cert_reqs="CERT_REQUIRED", running=self._running, **tls)
                self._pools[key] = pool
            self._pools.move_to_end(key)
            return pool
