# SPDX-License-Identifier: GPL-2.0-or-later
"""A Heptapod host whose repositories are the master's of a cluster: HGitaly, the WSGI application, and pushes over SSH.

with Cluster(folder) as cluster, Heptapod(cluster) as host:
    host.call("gitaly.RepositoryService.CreateRepository", {"repository": host.named("one")})
    host.push(clone, "one")
"""

import base64
import contextlib
import hashlib
import json
import os
import shlex
import socket
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hgext.vcsreplicator.demo.ports import free_port
from hgext.vcsreplicator.demo.supervisor import leashed
from testing.builders.cluster import Cluster
from testing.heptapod import environment
from testing.heptapod.gitlab import GitLab
from testing.services.cache import CHECKOUT
from testing.waiting import eventually

HERE = CHECKOUT / "testing" / "heptapod"
USER = {"glId": "user-7", "name": b"Ada Example", "email": b"ada@example.com", "glUsername": "ada"}


class Heptapod:
    """Runs while entered. `lines` are what the hgrc has besides Heptapod's own.

    A failed call raises `RuntimeError` with HGitaly's status; a failed push raises `AssertionError` with what the pusher read.
    """

    def __init__(self, cluster: Cluster, lines: str) -> None:
        self.cluster, self.folder = cluster, cluster.folder / "heptapod"
        self.gitlab = GitLab()
        (self.folder / "log").mkdir(parents=True)
        packages = environment.environment()
        self.python = packages / "bin" / "python"
        (required,) = packages.glob("lib/*/site-packages/heptapod/required.hgrc")
        secret, self._headers = self.folder / "secret", self.folder / "headers.json"
        secret.write_text("a secret of GitLab's and its shell's, of sixty characters or so")
        self._headers.write_text("{}")
        self.hgrc = self.folder / "heptapod.hgrc"
        self.hgrc.write_text(
            f"%include {required}\n"
            f"[heptapod]\nrepositories-root = {cluster.master_root}\nnative = yes\n"
            f"gitlab-internal-api-url = {self.gitlab.url}\ngitlab-internal-api-secret-file = {secret}\n"
            f"[logging]\nfile = {self.folder / 'log' / 'mercurial.log'}\n[extensions]\nhgitaly =\n{lines}"
        )
        self._environ = {
            "HGRCPATH": str(self.hgrc),
            "HEPTAPOD_HGRC": str(self.hgrc),
            "PATH": f"{packages / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "HOME": str(self.folder),
            "HGENCODING": "UTF-8",
            "LC_ALL": "C.UTF-8",
        }
        self._address, self._port = f"127.0.0.1:{free_port()}", free_port()
        self._stack = contextlib.ExitStack()
        self._calls: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self._stack.enter_context(self.gitlab)
        self._start("hgitaly", *self.hg_words("hgitaly-serve", "--listen", f"tcp://{self._address}"))
        self._start("wsgi", str(self.python), str(HERE / "workhorse.py"), str(self._port), str(self._headers))
        self._calls = self._stack.enter_context(
            subprocess.Popen(
                leashed([str(self.python), str(HERE / "calls.py"), self._address]),
                env=self._environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        eventually(self._answers_http, "the WSGI server listens")
        return self

    def _answers_http(self) -> bool:
        """Whether the WSGI server takes connections, which it does once it has imported all."""
        with socket.socket() as connection:
            return connection.connect_ex(("127.0.0.1", self._port)) == 0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            error.add_note(
                "\n".join(f"{log.name}:\n{log.read_text()[-3000:]}" for log in (self.folder / "log").iterdir())
            )
        if self._calls is not None and self._calls.stdin is not None:
            self._calls.stdin.close()
        self._stack.close()

    def hg_words(self, *words: str | Path) -> list[str]:
        """The argument vector of Heptapod's own `hg`."""
        return [str(self.python), str(self.python.with_name("hg")), *map(str, words)]

    def hg(self, *words: str | Path, **more: str) -> str:
        """What Heptapod's own `hg` prints, as an administrator on the host."""
        done = subprocess.run(
            self.hg_words(*words), env={**self._environ, "USER": "root", **more}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def path(self, name: str) -> str:
        """Where GitLab keeps the project of this name, below the root."""
        digest = hashlib.sha256(name.encode()).hexdigest()
        return f"@hashed/{digest[:2]}/{digest[2:4]}/{digest}"

    def folder_of(self, name: str) -> Path:
        return self.cluster.master_root / f"{self.path(name)}.hg"

    def know(self, name: str) -> None:
        """Have Workhorse know the project of this name, and its user."""
        known = json.loads(self._headers.read_text())
        user = {"USERINFO_ID": "7", "USERINFO_USERNAME": "ada", "PERMISSION_USER": "heptapod-publish"}
        known[f"/{self.path(name)}"] = {**user, "GL_REPOSITORY": self.named(name)["glRepository"]}
        self._headers.write_text(json.dumps(known))

    def named(self, name: str) -> dict[str, str]:
        """The project of this name, as requests have it."""
        return {
            "storageName": "default",
            "relativePath": f"{self.path(name)}.git",
            "glRepository": f"project-{int(hashlib.sha256(name.encode()).hexdigest()[:6], 16)}",
            "glProjectPath": f"group/{name}",
        }

    def call(self, method: str, *requests: dict[str, Any]) -> list[dict[str, Any]]:
        """Ask HGitaly, and return its responses."""
        assert self._calls is not None
        assert self._calls.stdin is not None
        assert self._calls.stdout is not None
        self._calls.stdin.write(json.dumps([method, requests], default=_encode) + "\n")
        self._calls.stdin.flush()
        said = json.loads(self._calls.stdout.readline())
        if isinstance(said, str):
            raise RuntimeError(f"{method}: {said}")
        assert isinstance(said, list)
        return said

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self._port}/{self.path(name)}.hg"

    def ssh(self, name: str) -> str:
        """A program for `ui.ssh`: GitLab's shell, which has authenticated the user and says so in the environment."""
        said = {
            **self._environ,
            "REMOTE_USER": "heptapod-publish",
            "HEPTAPOD_USERINFO_ID": "7",
            "HEPTAPOD_USERINFO_USERNAME": "ada",
            "GL_REPOSITORY": self.named(name)["glRepository"],
        }
        script = self.folder / f"ssh-{name}"
        script.write_text(
            "#!/bin/sh\n"
            + "".join(f"export {key}={shlex.quote(value)}\n" for key, value in said.items())
            + f"exec {shlex.join(self.hg_words('-R', self.folder_of(name), 'serve', '--stdio'))}\n"
        )
        script.chmod(0o755)
        return str(script)

    def _start(self, name: str, *words: str) -> None:
        with (self.folder / "log" / name).open("w") as log:
            process = subprocess.Popen(
                leashed(words), env=self._environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder
            )
        self._stack.callback(_stop, process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _encode(value: object) -> str:
    """Bytes of a request, as JSON has them."""
    assert isinstance(value, bytes)
    return base64.b64encode(value).decode()
