# SPDX-License-Identifier: GPL-2.0-or-later
"""Checks which file system a path is on.

The embedded log needs shared memory and locks that only local file systems have.
"""

import os
import re
from pathlib import Path

from ...words.errors import BadConfig

# fmt: off
NETWORK = frozenset({
    "9p", "afs", "beegfs", "ceph", "cifs", "coda", "fuse.cephfs", "fuse.glusterfs", "fuse.s3fs",
    "fuse.sshfs", "gfs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2",
    "orangefs", "pvfs2", "smb3", "smbfs", "vboxsf", "virtiofs",
})
# fmt: on
MOUNTS = Path("/proc/self/mountinfo")


def refuse_network(path: Path, mounts: str | None = None) -> None:
    """Raise BadConfig if `path` is on a network file system.

    `mounts` is the text of `/proc/self/mountinfo`.
    """
    if mounts is None:
        mounts = MOUNTS.read_text(errors="surrogateescape") if MOUNTS.exists() else ""
    kind = kind_of(os.path.realpath(path), mounts)
    if kind in NETWORK:
        raise BadConfig(
            f"sqlite://{path}: on a network file system ({kind}); expected a path on a local disk, or kafka://"
        )


def kind_of(path: str, mounts: str) -> str | None:
    """Return the type of the file system that holds the absolute `path`.

    It is that of the longest mount point above the path; of several there, the last one.
    """
    best, kind = "", None
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) > 4 and after:
            point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[4])
            if (path + "/").startswith(point.rstrip("/") + "/") and len(point) >= len(best):
                best, kind = point, after.split(" ")[0]
    return kind
