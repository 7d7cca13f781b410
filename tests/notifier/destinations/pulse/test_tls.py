# SPDX-License-Identifier: GPL-2.0-or-later
"""TLS to a real broker: a certificate is verified, or nothing is sent."""

from dataclasses import replace
from pathlib import Path

import pytest

from hgext.vcsreplicator.words.clock import SystemClock
from hgext.vcsreplicator.words.errors import Unavailable
from notifier.destinations.pulse.destination import PulseSettings
from testing.builders.certificates import certificate
from testing.builders.log.memorylog import MemoryLog
from testing.services.rabbitmq import TlsRabbitMQ

pytestmark = pytest.mark.processes


@pytest.fixture
def settings(tls_rabbitmq: TlsRabbitMQ) -> PulseSettings:
    url = f"amqps://guest:guest@localhost:{tls_rabbitmq.amqps_port()}//"
    return PulseSettings(url=url, exchange="exchange/guest/tls", ca_file=tls_rabbitmq.certificate_file())


@pytest.mark.services
def test_broker_with_a_known_certificate_is_spoken_to(settings: PulseSettings) -> None:
    destination = settings.open("it", SystemClock(), MemoryLog())
    destination.start()
    destination.close()


@pytest.mark.services
def test_broker_with_an_unknown_certificate_is_not(settings: PulseSettings, tmp_path: Path) -> None:
    other = certificate(tmp_path, "other", "DNS:localhost")
    for wrong in (None, str(other)):
        with pytest.raises(Unavailable, match="certificate verify failed"):
            replace(settings, ca_file=wrong).open("it", SystemClock(), MemoryLog()).start()


@pytest.mark.services
def test_broker_with_a_certificate_of_another_host_is_not(settings: PulseSettings) -> None:
    elsewhere = replace(settings, url=settings.url.replace("localhost", "127.0.0.1"))
    with pytest.raises(Unavailable, match="certificate verify failed"):
        elsewhere.open("it", SystemClock(), MemoryLog()).start()
