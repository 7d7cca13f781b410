# SPDX-License-Identifier: GPL-2.0-or-later
"""What errors say of a broker."""

import pytest

from notifier.clients.amqp.connection import where


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("amqp://broker", "broker:5672/"),
        ("amqps://user:secret@broker/", "broker:5671/"),
        ("amqps://broker:99/hg", "broker:99/hg"),
        ("amqp://broker//hg", "broker:5672//hg"),
    ],
)
def test_errors_name_the_port_of_the_connection_and_the_virtual_host(url: str, place: str) -> None:
    assert where(url) == place
