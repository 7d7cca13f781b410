# SPDX-License-Identifier: GPL-2.0-or-later
"""Clients of AWS that share what describes its services."""

import functools
from collections.abc import Iterator

import pytest
from botocore.loaders import JSONFileLoader


@pytest.fixture(scope="session", autouse=True)
def descriptions_of_services() -> Iterator[None]:
    """Read what describes AWS' services, megabytes of JSON, once for all clients: each session of boto3 reads it again."""
    with pytest.MonkeyPatch.context() as patch:
        loader = JSONFileLoader()
        for method in ("exists", "load_file"):
            patch.setattr(JSONFileLoader, method, staticmethod(functools.cache(getattr(loader, method))))
        yield
