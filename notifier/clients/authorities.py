# SPDX-License-Identifier: GPL-2.0-or-later
"""Certificate authorities that a destination trusts, from a file or the system."""

import os
import ssl

from hgext.vcsreplicator.words.errors import Unavailable


def trusting(ca_file: str | None) -> ssl.SSLContext:
    """Return a TLS context that verifies certificate and host name.

    Raises Unavailable if the file cannot be read or holds no certificates in PEM.
    """
    if ca_file is not None and os.path.exists(ca_file) and not os.path.isfile(ca_file):
        raise Unavailable(f"ca-file: {ca_file}: expected certificates in PEM, got a folder, a pipe or a device")
    try:
        return ssl.create_default_context(cafile=ca_file)
    except ssl.SSLError as error:
        raise Unavailable(f"ca-file: {ca_file}: expected certificates in PEM: {error.reason or error}") from error
    except OSError as error:
        raise Unavailable(f"ca-file: {ca_file} cannot be read: {error.strerror}") from error
