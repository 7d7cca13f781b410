# SPDX-License-Identifier: GPL-2.0-or-later
"""For transcripts: `lone-version.py CHANGESET PATH SIZE > BUNDLE` makes a bundle with a file version of so many bytes alone.

The version says that CHANGESET, which the bundle does not bring, had it.
"""

import hashlib
import struct
import sys

changeset, path, size = bytes.fromhex(sys.argv[1]), sys.argv[2].encode(), int(sys.argv[3])
null, content, end = bytes(20), b"x" * size, bytes(4)


def chunk(data: bytes) -> bytes:
    return struct.pack(">l", len(data) + 4) + data


node = hashlib.sha1(null + null + content).digest()
version = node + null + null + changeset + struct.pack(">lll", 0, 0, size) + content
no_changesets, no_manifests = end, end
sys.stdout.buffer.write(b"HG10UN" + no_changesets + no_manifests + chunk(path) + chunk(version) + end + end)
