# SPDX-License-Identifier: GPL-2.0-or-later
"""Credentials that RabbitMQ or Redis refuses stop the decoder with one line; a server that is away is waited for."""

import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.words.errors import Unavailable
from notifier.clients.secret import Secret
from notifier.services.decode.repeats import RedisIds
from notifier.services.decode.settings import DecodeSettings
from testing.services.rabbitmq import RabbitMQ
from testing.services.redis import Redis
from testing.waiting import eventually
from testing.warm import CLI, PROGRAM, warm_starts

pytestmark = pytest.mark.processes


class GuardedRedis(Redis):
    """A Redis whose password is `right`."""

    def command(self) -> Sequence[str]:
        return [*super().command(), "--requirepass", "right"]

    def answers(self) -> bool:
        return self.ask(b"AUTH right\r\n").startswith(b"+OK")


OwnService = Callable[[type[Any]], Any]


def write_file(folder: Path, *keys: str, password: str = "Wr0ng") -> Path:
    """A configuration of these keys, which may name the file `password` of the folder."""
    secret = folder / "password"
    secret.write_text(password)
    secret.chmod(0o600)
    file = folder / "services.toml"
    lines = [f'log = "sqlite://{folder}/log.db"', "[decode]", f'repeats = "{folder}/repeats.db"', *keys]
    if any(key.startswith("repeats") for key in keys):
        lines.pop(2)
    open_log(f"sqlite://{folder}/log.db", creates=True).close()
    file.write_text("\n".join(lines).replace("PASSWORD", f'{{ file = "{secret}" }}') + "\n")
    return file


def refused(file: Path, *words: str) -> str:
    """What the one line of a decoder that refuses its configuration says."""
    with warm_starts():
        done = subprocess.run(
            [*PROGRAM, CLI, "decode", "-c", str(file), *words], capture_output=True, text=True, timeout=60, check=False
        )
    assert done.returncode == 78, done.stderr
    [line] = done.stderr.splitlines()
    return str(json.loads(line)["reason"]) if line.startswith("{") else line.removeprefix("vcsreplicator: ")


@pytest.mark.parametrize("place", ['input = "queue:raw"', 'output = "queue:"'])
def test_a_password_that_the_broker_refuses_is_one_line_and_exit_78(place: str, rabbitmq: Any, tmp_path: Path) -> None:
    url = rabbitmq.vhost().replace("guest:guest@", "guest@")
    said = refused(file := write_file(tmp_path, place, f'broker = "{url}"', "broker-password = PASSWORD"))
    assert said.startswith(f"{file}: decode.broker: ")
    assert "ACCESS_REFUSED" in said
    assert said.endswith("expected user and password that the broker accepts")
    assert "Wr0ng" not in said


@pytest.mark.sample(1)
@pytest.mark.parametrize("key", ["", "redis-password = PASSWORD"])
def test_a_password_that_redis_refuses_is_one_line_and_exit_78(
    key: str, own_service: OwnService, tmp_path: Path
) -> None:
    redis = own_service(GuardedRedis)
    file = write_file(tmp_path, 'repeats = "redis"', f'redis = "{redis.url}"', key)
    (tmp_path / "a.ndjson").write_text("")
    for words in ((), (str(tmp_path / "a.ndjson"), "--output", str(tmp_path / "out"))):
        said = refused(file, *words)
        assert said.startswith(f"{file}: decode.redis: ")
        assert said.endswith("expected user and password that Redis takes")
        assert "Wr0ng" not in said


@pytest.mark.sample(1)
@pytest.mark.parametrize("user", ["", "default@"])
def test_a_password_of_redis_that_changes_is_the_next_connections(
    user: str, own_service: OwnService, tmp_path: Path
) -> None:
    redis, password = own_service(GuardedRedis), tmp_path / "password"
    password.write_text("right\n")
    password.chmod(0o600)
    url = redis.url.replace("redis://", f"redis://{user}")
    store = RedisIds(DecodeSettings(repeats="redis", redis=url, redis_password=Secret(file=str(password))))
    store.remember([b"a"])
    redis.ask(b"AUTH right\r\nCONFIG SET requirepass newer\r\nCLIENT KILL TYPE normal\r\n")
    password.unlink()
    with pytest.raises(Unavailable, match=r"decode\.redis-password: .* cannot be read"):
        store.known([b"a"])
    password.write_text("newer\n")
    password.chmod(0o600)
    assert store.known([b"a", b"b"]) == {b"a"}
    store.close()


@pytest.mark.parametrize(
    ("key", "others"),
    [
        ("broker-password", ['input = "queue:raw"', 'broker = "amqp://guest@127.0.0.1:1//"']),
        ("redis-password", ['repeats = "redis"', 'redis = "redis://127.0.0.1:1/0"']),
    ],
)
def test_a_password_that_cannot_be_read_is_one_line_and_exit_78(key: str, others: list[str], tmp_path: Path) -> None:
    file = write_file(tmp_path, *others, f"{key} = PASSWORD")
    (tmp_path / "password").chmod(0o644)
    said = refused(file)
    assert said.startswith(f"{file}: decode.{key}: {tmp_path}/password has mode 0644, expected 0600")
    (tmp_path / "password").unlink()
    assert refused(file) == f"{file}: decode.{key}: {tmp_path}/password cannot be read: No such file or directory"


def test_a_broker_and_a_redis_that_are_away_are_waited_for(own_service: OwnService, tmp_path: Path) -> None:
    broker = own_service(RabbitMQ)
    broker.stop_app()
    file = write_file(
        tmp_path,
        'input = "queue:raw"',
        f'broker = "{broker.url.replace("guest:guest@", "guest@")}"',
        "broker-password = PASSWORD",
        'repeats = "redis"',
        'redis = "redis://127.0.0.1:1/0"',
        "redis-password = PASSWORD",
        password="guest",
    )
    said = tmp_path / "said"
    with said.open("w") as errors, warm_starts():
        process = subprocess.Popen([*PROGRAM, CLI, "decode", "-c", str(file)], stderr=errors)
    try:
        eventually(lambda: process.poll() is not None or "decoding waits" in said.read_text(), "the decoder waits")
        broker.start_app()
        eventually(lambda: process.poll() is not None or '"ready"' in said.read_text(), "the decoder is ready")
        process.terminate()
        assert process.wait() == 0, said.read_text()
    finally:
        process.kill()
        process.wait()
