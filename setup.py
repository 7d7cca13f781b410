# SPDX-License-Identifier: GPL-2.0-or-later
"""A source distribution of equal bytes from equal files; all else is declared in pyproject.toml."""

import gzip
import os
import tarfile
import time

from setuptools import setup
from setuptools.command.sdist import sdist


class SourceDistribution(sdist):
    """With SOURCE_DATE_EPOCH, as setuptools itself makes wheels: without the builder's times, users and umask."""

    def make_archive(self, base_name, format, root_dir=None, base_dir=None, owner=None, group=None):  # type: ignore[no-untyped-def]
        date = int(os.environ.get("SOURCE_DATE_EPOCH", time.time()))

        def settle(file: tarfile.TarInfo) -> tarfile.TarInfo:
            file.mtime, file.uid, file.gid, file.uname, file.gname = date, 0, 0, "", ""
            file.mode = 0o755 if file.isdir() or file.mode & 0o100 else 0o644
            return file

        name = f"{base_name}.tar.gz"
        with gzip.GzipFile(name, "wb", mtime=date) as packed, tarfile.open(fileobj=packed, mode="w") as archive:
            archive.add(base_dir, filter=settle)
        return name


setup(cmdclass={"sdist": SourceDistribution})
