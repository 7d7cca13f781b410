# SPDX-License-Identifier: GPL-2.0-or-later
"""Names of files in the headers of hgweb's answers, in any writing.

Mercurial 7.2 makes text of headers as ASCII, and fails at the name of a file, branch, tag or bookmark beyond that.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

from pushlog import seams

_NAME = b"Content-Disposition"
# The parts of such a header as hgweb writes it: the kind, and the name with or without quotation marks.
_HEADER = re.compile(rb'([a-z]+); filename=("?)(.*)\2', re.DOTALL)


def install() -> None:
    """Wrap the sending of an answer, or raise MissingSeam."""
    seams.wrap("mercurial.hgweb.request", "wsgiresponse.sendresponse", _send)


def _send(orig: Callable[..., Iterator[bytes]], response: Any) -> Iterator[bytes]:
    """Send an answer; a name beyond printable ASCII is encoded as RFC 6266 says."""
    header: bytes | None = response.headers.get(_NAME)
    if header is not None and re.search(rb"[^ -~]", header):
        response.headers[_NAME] = encode_name(header)
    return orig(response)


def encode_name(header: bytes) -> bytes:
    """Return a header with its name in ASCII, and in full for clients since 2011.

    A name that is not UTF-8 is taken for Latin-1.
    """
    found = _HEADER.fullmatch(header)
    if found is None:
        return header.decode("latin-1").encode("ascii", "replace")
    kind, mark, name = found.groups()
    if mark:
        name = re.sub(rb"\\(.)", rb"\1", name)
    try:
        text = name.decode("utf-8")
    except UnicodeDecodeError:
        text = name.decode("latin-1")
    plain = re.sub(r"[^ !#-\[\]-~]", "_", text)
    return f"{kind.decode('ascii')}; filename=\"{plain}\"; filename*=UTF-8''{quote(text, safe='')}".encode("ascii")
