# SPDX-License-Identifier: GPL-2.0-or-later
"""The files of a local cluster, and the commands of its services.

DIR/vcsreplicator.toml      configuration of all services
DIR/master.hgrc             Mercurial on the master; DIR/mirror.hgrc on the mirrors
DIR/repos/master/           the master's repositories; DIR/repos/NAME/ each mirror's
DIR/log.db                  the embedded log, unless another is given
DIR/notices.jsonl           what the notifier delivered
DIR/output/ROLE.log         what each service printed
DIR/run/                    sockets
"""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from .ports import free_port

# Names of the first mirrors.
NAMES = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta")
EXCHANGES = ("exchange/hgpushes/v1", "exchange/hgpushes/v2")
PUBLIC_URL = "https://hg.example/"
REGION, BUCKET = "us-east-1", "hg-events"

# -P: no module is imported from the current folder.
PROGRAM = (sys.executable, "-P", "-m", "hgext.vcsreplicator.cli")


_MIRROR_HGRC = """\
[extensions]
*:required = yes
pushlog =
vcsreplicator =

[vcsreplicator]
role = mirror
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """The options of the command; URLs as on the command line, None where absent.

    Without a port all servers are at free ones of the loopback interface.
    """

    folder: Path
    mirrors: int = 2
    log: str | None = None
    pulse: str | None = None
    sns_endpoint: str | None = None
    durability: str = "store"
    port: int | None = None
    insecure: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """One service: its role, argument vector and complete environment."""

    role: str
    argv: tuple[str, ...]
    env: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A prepared cluster: paths, addresses and services, in the order they start."""

    options: DemoOptions
    log: str
    config: Path
    master_root: Path
    master_env: Mapping[str, str]
    master_url: str
    mirrors: Mapping[str, Path]
    mirror_urls: Mapping[str, str]
    notices: Path
    status_url: str
    services: tuple[Service, ...]
    topic_arn: str | None = None


def write_files(options: DemoOptions, *, topic_arn: str | None = None) -> Layout:
    """Write the files and return the layout; existing log and repositories stay."""
    folder = options.folder.resolve()
    names = [NAMES[index] if index < len(NAMES) else f"mirror{index + 1}" for index in range(options.mirrors)]
    for part in ("repos/master", *(f"repos/{name}" for name in names), "output", "run", "blobs"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    ports = [free_port() for _ in range(2 * len(names) + 3)]
    if options.port:
        ports[: len(names) + 1] = range(options.port, options.port + len(names) + 1)
    log = options.log or f"sqlite:///{str(folder / 'log.db').lstrip('/')}"
    layout = Layout(
        options=options,
        log=log,
        config=folder / "vcsreplicator.toml",
        master_root=folder / "repos/master",
        master_env=environment(folder, "master.hgrc"),
        master_url=f"http://127.0.0.1:{ports[0]}/",
        mirrors={name: folder / "repos" / name for name in names},
        mirror_urls={name: f"http://127.0.0.1:{port}/" for name, port in zip(names, ports[1:], strict=False)},
        notices=folder / "notices.jsonl",
        status_url=f"http://127.0.0.1:{ports[-1]}/status",
        services=(),
        topic_arn=topic_arn,
    )
    listen = {f"mirror-{name}": ports[1 + len(names) + index] for index, name in enumerate(names)}
    listen["aggregator"] = ports[-1]
    write_own(folder / "master.hgrc", _master_hgrc(layout, folder))
    (folder / "mirror.hgrc").write_text(_MIRROR_HGRC, encoding="utf-8")
    write_own(layout.config, _write_toml(layout, folder, listen))
    return _with_services(layout, folder, names)


def write_own(file: Path, text: str) -> None:
    """Write a file that its user alone may read, because it may hold a password."""
    file.touch(0o600)
    file.chmod(0o600)
    file.write_text(text, encoding="utf-8")


def write_ready_file(file: Path, layout: Layout, pids: Mapping[str, int | None]) -> None:
    """Write what a program needs to use the installation, by rename.

    `pids` are by role. Absent values are null.
    """
    content = {
        "master": {"root": str(layout.master_root), "env": dict(layout.master_env), "url": layout.master_url},
        "mirrors": [
            {"name": name, "root": str(root), "url": layout.mirror_urls[name]} for name, root in layout.mirrors.items()
        ],
        "services": {
            service.role: {"argv": list(service.argv), "env": dict(service.env), "pid": pids.get(service.role)}
            for service in layout.services
        },
        "log": layout.log,
        "pulse": layout.options.pulse
        and {"url": layout.options.pulse, "exchange_v1": EXCHANGES[0], "exchange_v2": EXCHANGES[1]},
        "sns": layout.topic_arn and {"topic_arn": layout.topic_arn, "bucket": BUCKET},
        "status_url": layout.status_url,
    }
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    write_own(temporary, json.dumps(content, indent=2) + "\n")
    temporary.replace(file)


def _with_services(layout: Layout, folder: Path, names: list[str]) -> Layout:
    config = ("--config", str(layout.config))
    on_master, on_mirror = layout.master_env, environment(folder, "mirror.hgrc")

    def web(role: str, root: Path, url: str, env: Mapping[str, str]) -> Service:
        host = "0.0.0.0" if layout.options.port else "127.0.0.1"
        where = ("--root", str(root), "--listen", f"{host}:{urlsplit(url).port}", "--role", role)
        return Service(role=role, argv=(*PROGRAM, "web", *where), env=env)

    services = [
        Service(role="aggregator", argv=(*PROGRAM, "aggregator", *config), env=on_mirror),
        Service(role="relay", argv=(*PROGRAM, "relay", *config), env=on_master),
        *(Service(role=f"mirror-{name}", argv=(*PROGRAM, "mirror", name, *config), env=on_mirror) for name in names),
        Service(role="notifier", argv=(*PROGRAM, "notifier", *config), env=on_mirror),
        web("web-master", layout.master_root, layout.master_url, on_master),
        *(web(f"web-{name}", layout.mirrors[name], layout.mirror_urls[name], on_mirror) for name in names),
    ]
    return replace(layout, services=tuple(services))


def environment(folder: Path, hgrc: str) -> dict[str, str]:
    """Make an environment that takes only paths and AWS settings from the caller."""
    own = os.path.dirname(sys.executable)
    return {
        "PATH": own + os.pathsep + os.environ.get("PATH", os.defpath),
        "HOME": str(folder),
        # The user in the pushlog, because no pusher logs in here.
        "USER": "dana@example.com",
        "HGRCPATH": str(folder / hgrc),
        "HGPLAIN": "1",
        # Without translation Mercurial's page of help fails.
        "HGPLAINEXCEPT": "i18n",
        "HGENCODING": "UTF-8",
        "LC_ALL": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",
        **{name: value for name, value in os.environ.items() if name.startswith(("AWS_", "PYTHONPATH"))},
    }


def _master_hgrc(layout: Layout, folder: Path) -> str:
    words = " ".join(layout.options.insecure)
    insecure = f"insecure = {words}\n" if words else ""
    return f"""\
[extensions]
*:required = yes
pushlog =
vcsreplicator =

[vcsreplicator]
role = master
relay = {choose_socket(folder, "relay.sock")}
log = {layout.log}
durability = {layout.options.durability}
snapshot-allow = 127.0.0.1
{insecure}
[vcsreplicator-roots]
{layout.master_root} = .

[web]
allow-push = *
push_ssl = no
server-header = no
"""


def choose_socket(folder: Path, name: str) -> str:
    """Return a path for the Unix socket of this name; Linux allows 107 bytes."""
    inside = str(folder / "run" / name)
    return inside if len(inside.encode()) < 100 else f"/tmp/vcsreplicator-{os.getpid()}-{name}"


def _write_toml(layout: Layout, folder: Path, listen: Mapping[str, int]) -> str:
    parts = [
        f'insecure = {list(layout.options.insecure)}\nlog = {quote(layout.log)}\nblobs = "file://{folder}/blobs"\n',
        f'[relay]\nsocket = {quote(choose_socket(folder, "relay.sock"))}\nsource = "hg://master.example"\n',
        f'[relay.roots]\n"{layout.master_root}" = ""\n',
        *(
            f'[mirror.{name}]\nroot = "{root}"\nmaster = "{layout.master_url}"\n'
            for name, root in layout.mirrors.items()
        ),
        "[aggregator]\n",
        f'[public.urls]\n"" = "{PUBLIC_URL}"\n',
        f'[notifier]\nstate = "{folder}/notifier.db"\n',
        f'[notifier.lines]\ntype = "jsonlines"\nfile = "{layout.notices}"\n',
        *(_write_pulse(layout) if layout.options.pulse else ()),
        *([_write_sns(layout)] if layout.options.sns_endpoint else ()),
        "[listen]\n" + "".join(f'{role} = "127.0.0.1:{port}"\n' for role, port in listen.items()),
    ]
    return "\n".join(parts)


def quote(text: str) -> str:
    """Return the text as a string of TOML, which has the escapes of JSON."""
    return json.dumps(text, ensure_ascii=False)


def _write_pulse(layout: Layout) -> list[str]:
    return [
        f'[notifier.pulse-{stream}]\ntype = "pulse"\nurl = {quote(layout.options.pulse or "")}\nstream = "{stream}"\n'
        f'exchange = "{exchange}"\nrouting-key-strip-prefix = "{PUBLIC_URL}"\n'
        for stream, exchange in zip(("v1", "v2"), EXCHANGES, strict=True)
    ]


def _write_sns(layout: Layout) -> str:
    endpoint = quote(layout.options.sns_endpoint or "")
    return (
        f'[notifier.sns]\ntype = "sns"\ntopic-arn = "{layout.topic_arn}"\nbucket = "{BUCKET}"\n'
        f'region = "{REGION}"\nsns-endpoint-url = {endpoint}\ns3-endpoint-url = {endpoint}\n'
    )
