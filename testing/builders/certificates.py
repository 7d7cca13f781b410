# SPDX-License-Identifier: GPL-2.0-or-later
"""Certificates for services and endpoints of tests."""

import subprocess
from pathlib import Path


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


def certificate(folder: Path, name: str, subject: str) -> Path:
    """A self-signed certificate for `subject`, and its key beside it."""
    file, key = folder / f"{name}.pem", folder / f"{name}.key"
    request = ("-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}")
    _openssl("req", *request, "-addext", f"subjectAltName={subject}", "-keyout", str(key), "-out", str(file))
    key.chmod(0o644)
    return file
