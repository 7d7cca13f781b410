# SPDX-License-Identifier: GPL-2.0-or-later
"""Reports failures to Sentry, if a DSN is configured, and holds up no work."""

import sentry_sdk

from hgext.vcsreplicator.words.errors import BadConfig
from hgext.vcsreplicator.words.version import VERSION

from ...clients.secret import Secret

# Seconds that the last reports may take at the end.
FLUSH = 2.0


class FailureReporter:
    """Reports failures; without a DSN it does nothing."""

    def __init__(self, dsn: Secret | None) -> None:
        """Prepare the client; raises BadConfig if the secret is no DSN."""
        self._client: sentry_sdk.Client | None = None
        if dsn is not None:
            try:
                # No integrations: nothing of this process is sent but the failures themselves.
                self._client = sentry_sdk.Client(
                    dsn.read("work.sentry-dsn"),
                    release=f"vcsreplicator@{VERSION}",
                    default_integrations=False,
                    include_local_variables=False,
                )
            except sentry_sdk.utils.BadDsn as error:
                raise BadConfig(f"work.sentry-dsn: expected a DSN such as https://KEY@HOST/PROJECT: {error}") from None

    def report(self, error: BaseException, repository: str) -> None:
        """Send one failure, in the background."""
        if self._client is not None:
            with sentry_sdk.new_scope() as scope:
                scope.set_client(self._client)
                scope.set_tag("repository", repository)
                scope.capture_exception(error)

    def close(self) -> None:
        """Wait up to `FLUSH` seconds for reports that are being sent."""
        if self._client is not None:
            self._client.close(timeout=FLUSH)
