# SPDX-License-Identifier: GPL-2.0-or-later
"""A master's web behind name and password, as `python -m testing.builders.master.guarded_web ROOT PORT NAME PASSWORD`."""

import base64
import sys
from collections.abc import Iterable
from typing import Any

import waitress

from hgext.vcsreplicator.hg.serving.web import application


def main(root: str, port: str, name: str, password: str) -> None:
    """Answer 401 to clients that do not know them, and name the others to Mercurial."""
    answered = application(root)
    expected = "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode("ascii")

    def answer(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ.get("HTTP_AUTHORIZATION") != expected:
            start_response("401 Unauthorized", [("WWW-Authenticate", 'Basic realm="master"')])
            return [b"who are you?\n"]
        return answered({**environ, "REMOTE_USER": name}, start_response)

    waitress.serve(answer, host="127.0.0.1", port=int(port), ident=None)


if __name__ == "__main__":
    main(*sys.argv[1:])
