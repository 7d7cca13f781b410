# SPDX-License-Identifier: GPL-2.0-or-later
"""A real RabbitMQ: a private node of Debian's package, with a name, cookie, port mapper and data of its own."""

import contextlib
import functools
import hashlib
import os
import re
import secrets
import shutil
import socket
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hgext.vcsreplicator.demo.ports import free_port
from testing.builders.certificates import certificate
from testing.services.cache import cached
from testing.services.process import PATIENCE, Service, ServiceMissing, needed

# What a node runs, and the shovel, which a test may enable; the plugins that these need are started with them.
APPLICATIONS = ("rabbit", "rabbitmq_management", "rabbitmq_shovel")

# Of `guest:guest`.
AUTHORIZATION = "Basic Z3Vlc3Q6Z3Vlc3Q="


class RabbitMQ(Service):
    """One node, user `guest` with all rights. `url` is its default virtual host, `vhost()` makes an empty one.

    With the management plugin, which adds nothing to the two processor seconds of a start that can be measured.
    """

    name = "rabbitmq"

    def __init__(self) -> None:
        super().__init__()
        self._mapper_port, self._node_port, self._management_port = free_port(), free_port(), free_port()
        self._cookie, self._evaluating = secrets.token_hex(16), threading.Lock()
        cookie = self.folder / ".erlang.cookie"
        cookie.write_text(self._cookie)
        cookie.chmod(0o600)
        (self.folder / "enabled_plugins").write_text("[rabbitmq_management].\n")
        (self.folder / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = 127.0.0.1:{self.port}\nloopback_users = none\ndisk_free_limit.absolute = 50MB\n"
            f"management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {self._management_port}\n"
            # The management plugin counts every second instead of every five.
            "collect_statistics_interval = 1000\n"
            + "".join(
                f"management.sample_retention_policies.{each}.minute = 1\n" for each in ("global", "basic", "detailed")
            )
        )

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}//"

    def management_url(self) -> str:
        """The address of its management API, for the user `guest` with the password `guest`."""
        return f"http://guest@127.0.0.1:{self._management_port}"

    def command(self) -> Sequence[str]:
        return [str(server())]

    def environment(self) -> Mapping[str, str]:
        home = installation()
        return {
            "RABBITMQ_SCRIPTS_DIR": str(home / "sbin"),
            "RABBITMQ_PLUGINS_DIR": str(home / "plugins"),
            "HOME": str(self.folder),  # of the cookie
            "RUNNING_UNDER_SYSTEMD": "true",  # become the Erlang machine instead of waiting for it
            "RABBITMQ_NODENAME": f"test{self.port}@127.0.0.1",  # not `localhost`: a bare machine may not know that name
            "RABBITMQ_USE_LONGNAME": "true",  # allows the dots
            "RABBITMQ_CONF_ENV_FILE": os.devnull,
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "data"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_DIST_PORT": str(self._node_port),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1} +S 1:1",
            "ERL_EPMD_PORT": str(self._mapper_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }

    def answers(self) -> bool:
        """The listener opens last in the start; a protocol header must be answered with `connection.start`."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=2) as connection:
            connection.sendall(b"AMQP\x00\x00\x09\x01")
            return connection.recv(1) == b"\x01"

    def kill(self) -> None:
        """SIGKILL it, once what it confirmed is on disk.

        RabbitMQ confirms a queue or binding when its database has the rows; that they count is written a moment later, by another
        process. Killed between the two it comes back without them: a fault of its own, which no sender can repair.
        """
        with contextlib.suppress(OSError, ServiceMissing):  # it may be hung, or down already
            if self.answers():
                self.evaluate("mnesia_recover:sync(), mnesia:sync_log()")
        super().kill()

    def close(self) -> None:
        """End it at once, without what `kill` waits for: no data stays."""
        Service.kill(self)
        super().close()

    def stop_app(self) -> None:
        """Stop the broker in its Erlang machine, as `rabbitmqctl stop_app` does: a start of the machine takes two seconds more."""
        self.evaluate("rabbit:stop()")

    def start_app(self) -> None:
        """Start it again after `stop_app`; return once it answers."""
        self.evaluate("rabbit:start()")
        self.wait_until_ready()

    def vhost(self) -> str:
        """The URL of a new, empty virtual host, by HTTP: each `rabbitmqctl` starts an Erlang machine."""
        name = f"test-{secrets.token_hex(4)}"
        self._ask_for_vhost("PUT", name)
        return self.url.removesuffix("/") + name

    def remove_vhost(self, url: str) -> None:
        """Remove a virtual host with all in it: each that stays makes all later ones dearer, and computes though it is idle."""
        self._ask_for_vhost("DELETE", urllib.parse.urlsplit(url).path.removeprefix("/"))

    def _ask_for_vhost(self, method: str, name: str) -> None:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        address = f"http://127.0.0.1:{self._management_port}/api/vhosts/{name}"
        headers = {"Authorization": AUTHORIZATION, "Content-Type": "application/json"}
        opener.open(urllib.request.Request(address, b"{}", headers, method=method), timeout=60).close()

    def place(self) -> str:
        """An empty virtual host: the default one is not emptied."""
        return self.vhost()

    def block_publishers(self) -> None:
        """Raise its memory alarm: from now on it reads nothing more from a connection that publishes."""
        self.evaluate("vm_memory_monitor:set_vm_memory_high_watermark(0.0001)")

    def unblock_publishers(self) -> None:
        """End the alarm."""
        self.evaluate("vm_memory_monitor:set_vm_memory_high_watermark(0.4)")

    def close_connections(self, vhost: str = "", client: str = "") -> None:
        """Close all connections, or those to a virtual host whose client has this text among its properties."""
        self.evaluate(
            'Text = fun(Any) -> unicode:characters_to_list(io_lib:format("~tp", [Any])) end, '
            '[rabbit_networking:close_connection(proplists:get_value(pid, Each), "test") '
            "|| Each <- rabbit_networking:connection_info_all([pid, vhost, client_properties]), "
            f'string:find(Text([proplists:get_value(vhost, Each)]), "{vhost}") =/= nomatch, '
            f'string:find(Text(proplists:get_value(client_properties, Each)), "{client}") =/= nomatch]'
        )

    def allow_writing(self, vhost: str, pattern: str) -> None:
        """Let the user write to what the pattern names, in this virtual host."""
        self.evaluate(
            f'rabbit_auth_backend_internal:set_permissions(<<"guest">>, <<"{vhost}">>, <<".*">>, <<"{pattern}">>, '
            '<<".*">>, <<"test">>)'
        )

    def change_password(self, password: str) -> None:
        """Give the user another password, which new connections need."""
        self.evaluate(f'rabbit_auth_backend_internal:change_password(<<"guest">>, <<"{password}">>, <<"test">>)')

    def held(self, url: str, queue: str) -> int:
        """How many messages a queue of a virtual host has, with those that a receiver has not acknowledged."""
        vhost = urllib.parse.urlsplit(url).path.removeprefix("/")
        found = f'rabbit_amqqueue:lookup(rabbit_misc:r(<<"{vhost}">>, queue, <<"{queue}">>))'
        said = self.evaluate(
            f"{{ok, Found}} = {found}, [{{messages, Count}}] = rabbit_amqqueue:info(Found, [messages]), Count"
        )
        return int(said.removeprefix("{ok, ").removesuffix("}"))

    def clear(self) -> None:
        """Be as after the first start, without alarms, connections and virtual hosts, and stand still until it is woken."""
        if not self.running:
            raise ServiceMissing(f"{self.name} was stopped")
        self.resume()
        self.start_app()
        self.unblock_publishers()
        self.close_connections()
        self.evaluate('[rabbit_vhost:delete(Each, <<"test">>) || Each <- rabbit_vhost:list_names(), Each =/= <<"/">>]')
        self.pause()

    def wake(self) -> None:
        """Go on, and return once it answers."""
        self.resume()
        self.wait_until_ready()

    def evaluate(self, expressions: str) -> str:
        """Evaluate Erlang in the node: `rabbitmqctl` would start an Erlang machine, which takes a second."""
        address = f"127.0.0.1:{self._node_port}"
        call = [needed("erl_call", "erlang-base"), "-address", address, "-c", self._cookie, "-e"]
        with self._evaluating:  # all callers have one name, by which the node knows one at a time
            deadline = time.monotonic() + PATIENCE
            while True:
                result = subprocess.run(call, input=f"{expressions}.\n", capture_output=True, text=True)
                is_refused = result.returncode and "failed to connect" in result.stderr
                if not (is_refused and self.running and time.monotonic() < deadline):
                    break
                time.sleep(0.01)  # the node has not missed the last caller yet
        if result.returncode or not result.stdout.startswith("{ok,"):
            raise ServiceMissing(f"{expressions}: {result.stderr.strip() or result.stdout.strip()}")
        return result.stdout


def server() -> Path:
    """The program that becomes a node."""
    found = needed("rabbitmq-server", "rabbitmq-server")
    # Debian's wrapper of the same name would change the user and forget the environment.
    is_wrapper = os.path.realpath(found) == os.path.realpath("/usr/sbin/rabbitmq-server")
    return Path("/usr/lib/rabbitmq/bin/rabbitmq-server" if is_wrapper else found)


def installation() -> Path:
    """A folder like that of RabbitMQ's package, in which a node finds its modules sooner.

    For each module Erlang asks one folder of each library after the other, by name from the last: sixty thousand files that do not
    exist, which is half of what a start costs. Here the last folder has all modules, and libraries that no node runs are left out.
    """
    libraries = Path(needed("erl", "erlang-base")).resolve().parents[1] / "lib"
    folders = [*sorted((server().resolve().parents[1] / "plugins").iterdir()), *sorted(libraries.iterdir())]
    known_by = hashlib.sha256("\n".join(map(str, [Path(__file__).read_text(), *folders])).encode()).hexdigest()[:12]
    return cached(f"rabbitmq-{known_by}", functools.partial(_link_installation, folders))


def _link_installation(folders: Sequence[Path], folder: Path) -> None:
    package = server().resolve().parents[1]
    shutil.copytree(package / "sbin", folder / "sbin")
    descriptions = {file.stem: file for each in folders for file in each.glob("ebin/*.app")}
    wanted = list(APPLICATIONS)
    for name in wanted:
        found = re.search(r"\{applications,\s*\[(.*?)\]", descriptions[name].read_text(), re.DOTALL)
        wanted += set(re.findall(r"\w+", found[1] if found else "")) & descriptions.keys() - set(wanted)
    modules = folder / "plugins" / "zz_all_modules-1" / "ebin"
    modules.mkdir(parents=True)
    for name in wanted:
        library = descriptions[name].parents[1]
        if library.is_relative_to(package):
            (folder / "plugins" / library.name).symlink_to(library)
    for module in [file for each in [*(folder / "plugins").iterdir(), *folders] for file in each.glob("ebin/*.beam")]:
        with contextlib.suppress(FileExistsError):
            (modules / module.name).symlink_to(module.resolve())


class RabbitMQOfTest:
    """A broker that all tests of a run share, as one of them has it: `close` removes the virtual hosts that it made."""

    def __init__(self, broker: Any) -> None:
        self._broker, self._made = broker, list[str]()

    def vhost(self) -> str:
        """The URL of a new, empty virtual host."""
        self._made.append(self._broker.vhost())
        return self._made[-1]

    def close(self) -> None:
        """Remove the virtual hosts, with what is connected to them."""
        while self._made:
            self._broker.remove_vhost(self._made.pop())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)


class TlsRabbitMQ(RabbitMQ):
    """Listens with TLS too, for AMQP and for its management API, as `localhost`."""

    name = "rabbitmq-tls"

    def __init__(self) -> None:
        super().__init__()
        self._amqps_port, self._https_port = free_port(), free_port()
        self._certificate = certificate(self.folder, "broker", "DNS:localhost")
        key = self._certificate.with_suffix(".key")
        with (self.folder / "rabbitmq.conf").open("a") as conf:
            conf.write(
                f"listeners.ssl.1 = 127.0.0.1:{self._amqps_port}\nssl_options.certfile = {self._certificate}\n"
                f"ssl_options.keyfile = {key}\nssl_options.verify = verify_none\n"
                f"management.ssl.ip = 127.0.0.1\nmanagement.ssl.port = {self._https_port}\n"
                f"management.ssl.certfile = {self._certificate}\nmanagement.ssl.keyfile = {key}\n"
            )

    def amqps_port(self) -> int:
        """Where it speaks AMQP with TLS."""
        return self._amqps_port

    def https_port(self) -> int:
        """Where its management API speaks TLS."""
        return self._https_port

    def certificate_file(self) -> str:
        """The file with its certificate, which is its own authority."""
        return str(self._certificate)
