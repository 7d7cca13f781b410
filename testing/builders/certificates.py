# SPDX-License-Identifier: GPL-2.0-or-later
"""Certificates for services and endpoints of tests."""

import subprocess
from pathlib import Path

# A key on an elliptic curve: one of RSA takes a fifth of a second.
REQUEST = ("-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")


def certificate(folder: Path, name: str, subject: str) -> Path:
    """A self-signed certificate for `subject`, and its key beside it."""
    file, key = folder / f"{name}.pem", folder / f"{name}.key"
    names = ("-subj", f"/CN={name}", "-addext", f"subjectAltName={subject}")
    subprocess.run(["openssl", "req", *REQUEST, *names, "-keyout", key, "-out", file], check=True, capture_output=True)
    key.chmod(0o644)
    return file
