# SPDX-License-Identifier: GPL-2.0-or-later
"""A real PostgreSQL from Debian's package, with data of its own: user `test`, password `test`."""

import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from testing.services.cache import cached
from testing.services.process import Service, ServiceMissing

# PostgreSQL refuses to run as root; then this user runs it.
GUEST = 65534


def programs() -> Path:
    """The folder of the newest version's programs."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if not found:
        raise ServiceMissing(
            "initdb is missing: install the Debian package postgresql, or run testing/install_debian.sh"
        )
    return found[-1].parent


def as_user(*command: str) -> list[str]:
    """The command as a user that PostgreSQL accepts."""
    drop = ["setpriv", f"--reuid={GUEST}", f"--regid={GUEST}", "--clear-groups"] if os.geteuid() == 0 else []
    return [*drop, *command]


def _fill(folder: Path) -> None:
    """Make the data of an empty server; once for all runs."""
    data = folder / "data"
    password = folder / "password"
    password.write_text("test\n")
    data.mkdir()
    _give(folder)
    command = [str(programs() / "initdb"), "-D", str(data), "-U", "test", "--pwfile", str(password)]
    made = subprocess.run(
        as_user(*command, "--auth=scram-sha-256", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync"),
        capture_output=True,
        text=True,
        cwd="/",
    )
    if made.returncode:
        raise ServiceMissing(f"initdb: {made.stderr.strip()}")


def _give(folder: Path) -> None:
    if os.geteuid() == 0:
        folder.chmod(0o755)
        subprocess.run(["chown", "-R", f"{GUEST}:{GUEST}", str(folder)], check=True)


class PostgreSQL(Service):
    """One server. `url` is its default database, `database()` makes an empty one."""

    name = "postgresql"

    def __init__(self) -> None:
        super().__init__()
        shutil.copytree(cached(f"postgresql-{programs().parts[-2]}", _fill) / "data", self.folder / "data")
        (self.folder / "data").chmod(0o700)
        _give(self.folder)

    @property
    def url(self) -> str:
        return self._url("postgres")

    def command(self) -> Sequence[str]:
        options = {
            "port": self.port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "fsync": "off",
            "max_connections": "200",
        }
        words = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        return as_user(str(programs() / "postgres"), "-D", str(self.folder / "data"), *words)

    def answers(self) -> bool:
        import psycopg  # 0.1 s, in each run of tests

        try:
            self._run("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True

    def database(self) -> str:
        """The URL of a new, empty database."""
        name = f"test_{secrets.token_hex(4)}"
        self._run(f"CREATE DATABASE {name}")
        return self._url(name)

    def close(self) -> None:
        """Stop it first: killed, it leaves shared memory. At once, as an open connection would hold it up."""
        self.resume()
        self._signal(signal.SIGINT)
        self.stop()
        super().close()

    def _run(self, statement: str) -> None:
        import psycopg

        with psycopg.connect(self.url.replace("+psycopg", ""), autocommit=True, connect_timeout=2) as connection:
            connection.execute(statement.encode())

    def _url(self, name: str) -> str:
        return f"postgresql+psycopg://test:test@127.0.0.1:{self.port}/{name}"
