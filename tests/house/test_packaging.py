# SPDX-License-Identifier: GPL-2.0-or-later
"""Image, trial with compose, completion and manual pages: they name what there is. No daemon runs here, so nothing is built."""

import importlib
import importlib.util
import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.shell_completion import BashComplete

from hgext.vcsreplicator.cli.setup import texts
from hgext.vcsreplicator.cli.verbs import VERBS, program
from hgext.vcsreplicator.demo.layout import DemoOptions, write_files
from testing.services.cache import CHECKOUT
from tests.house.shown import PAGES


def instructions() -> list[list[str]]:
    """The Dockerfile's instructions, each with its words."""
    lines = (CHECKOUT / "Dockerfile").read_text().splitlines()
    return [line.split() for line in lines if line and not line.startswith("#")]


def compose() -> dict[str, Any]:
    return dict(yaml.safe_load((CHECKOUT / "compose.yaml").read_text()))


def test_the_build_of_the_image_gets_the_source_distribution() -> None:
    ignored = (CHECKOUT / ".dockerignore").read_text().splitlines()
    allowed = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    packed = {"MANIFEST.in", "README.md", "pyproject.toml", "setup.py"}
    for name, *words in map(str.split, (CHECKOUT / "MANIFEST.in").read_text().splitlines()):
        packed.update(words if name in ("include", "graft") else [])
    assert ignored[0] == "*"
    assert allowed == packed
    assert ["COPY", ".", "."] in instructions()


def test_the_image_is_what_the_debian_package_installs() -> None:
    """The package of this source; the programs that run are in its environment."""
    lines = [" ".join(words) for words in instructions()]
    built, copied = lines.index("RUN make deb"), lines.index("COPY --from=build /source/build/deb/*.deb /package/")
    installed = lines.index(
        "RUN apt-get update && apt-get install -y --no-install-recommends /package/*.deb"
        " && rm -r /package /var/lib/apt/lists/*"
    )
    assert built < copied < installed
    assert "cd build/deb/source && dpkg-buildpackage" in (CHECKOUT / "Makefile").read_text()
    assert any(line.startswith(f"ENV PATH={texts.PACKAGED}:$PATH ") for line in lines)
    assert not any("pip" in line.split() for line in lines)


def test_the_package_has_locked_packages_for_every_service() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    extras = {
        name: wanted for name, wanted in project["optional-dependencies"].items() if name not in ("test", "check")
    }
    needed = [line for wanted in (project["dependencies"], *extras.values()) for line in wanted]
    locked, tested = (
        set(re.findall(r"^([a-z0-9.-]+)==(\S+)", (CHECKOUT / "requirements" / name).read_text(), re.MULTILINE))
        for name in ("services.txt", "test.txt")
    )
    assert {re.split(r"[\[<>=]", line)[0].lower() for line in needed} <= {name for name, _ in locked}
    assert locked <= tested
    assert "--requirements requirements/services.txt" in (CHECKOUT / "debian/rules").read_text()


def test_the_image_knows_real_instructions_and_starts_our_program() -> None:
    known = {"ARG", "FROM", "RUN", "WORKDIR", "COPY", "ENV", "USER", "ENTRYPOINT"}
    assert {name for name, *_ in instructions()} <= known
    assert instructions()[-1] == ["ENTRYPOINT", '["vcsreplicator"]']
    for name, *words in instructions():
        if name == "RUN":
            done = subprocess.run(["/bin/sh", "-n", "-c", " ".join(words)], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr


def test_compose_starts_verbs_with_options_that_they_have() -> None:
    services = compose()["services"]
    trial = services["trial"]
    assert (CHECKOUT / trial["build"]["context"] / "Dockerfile").is_file()
    verb, *options = trial["command"]
    command = program.get_command(click.Context(program), verb)
    assert command is not None
    given = command.make_context(verb, list(options)).params
    for url in (given["log"], given["pulse"]):
        host = url.partition("://")[2].rpartition("@")[2].partition("/")[0].partition(":")[0]
        assert host in trial["depends_on"]
    for name in trial["depends_on"]:
        assert services[name]["healthcheck"]["test"][0] == "CMD"
    user = services["rabbitmq"]["environment"]
    assert f"//{user['RABBITMQ_DEFAULT_USER']}:{user['RABBITMQ_DEFAULT_PASS']}@" in given["pulse"]
    folder = given["folder"]
    assert any(name == "RUN" and folder in shlex.split(" ".join(words)) for name, *words in instructions())


def test_the_host_reaches_the_master_and_mirrors_of_the_trial(tmp_path: Path) -> None:
    trial = compose()["services"]["trial"]
    verb, *words = trial["command"]
    command = program.get_command(click.Context(program), verb)
    assert command is not None
    given = command.make_context(verb, list(words)).params
    layout = write_files(DemoOptions(folder=tmp_path, mirrors=given["mirrors"], port=given["port"]))
    webs = [service.argv for service in layout.services if service.role.startswith("web-")]
    served = [argv[argv.index("--listen") + 1].partition(":")[::2] for argv in webs]
    first, last = served[0][1], served[-1][1]
    assert {host for host, _ in served} == {"0.0.0.0"}  # the loopback of a container is its own
    assert len(served) == int(last) - int(first) + 1
    assert trial["ports"] == [f"127.0.0.1:{first}-{last}:{first}-{last}"]
    assert f"http://127.0.0.1:{first}/" in (CHECKOUT / "compose.yaml").read_text()


def test_every_image_has_a_digest_and_another_may_be_given() -> None:
    """By a variable, whose default is a name with a tag and a digest; the page about containers has each of them."""
    arguments = [words[0].partition("=")[::2] for name, *words in instructions() if name == "ARG"]
    assert {words[0] for name, *words in instructions() if name == "FROM"} == {f"${name}" for name, _ in arguments}
    services = compose()["services"]
    assert services["trial"]["build"]["args"] == {name: f"${{{name}:-{image}}}" for name, image in arguments}
    images = [each["image"] for each in services.values() if "image" in each]
    variables = [re.fullmatch(r"\$\{([A-Z_]+):-([^}]+)\}", image) for image in images]
    assert all(variables), images
    for name, image in [*arguments, *(each.groups() for each in variables if each)]:
        assert re.fullmatch(r"[a-z/]+:[0-9][0-9.]*(-[a-z]+)*@sha256:[0-9a-f]{64}", image), image
        assert f"`{name}`" in PAGES["docs/install.md"], name


@pytest.mark.parametrize(
    ("words", "last", "expected"),
    [([], "aggre", "aggregator"), (["roster"], "deac", "deactivate"), (["verify"], "--re", "--repository")],
)
def test_a_shell_completes_verbs_and_options(words: list[str], last: str, expected: str) -> None:
    complete = BashComplete(program, {}, "vcsreplicator", "_VCSREPLICATOR_COMPLETE")
    assert [item.value for item in complete.get_completions(words, last)] == [expected]


@pytest.mark.filterwarnings("ignore:.click.utils.make_default_short_help:DeprecationWarning")  # of click-man
def test_every_verb_has_a_manual_page(tmp_path: Path) -> None:
    importlib.import_module("testing.man_pages").write(tmp_path)
    names = {page.stem for page in tmp_path.glob("*.1")}
    assert {f"vcsreplicator-{verb}" for verb in VERBS} <= names
    assert "vcsreplicator-roster-deactivate" in names
    page = (tmp_path / "vcsreplicator.1").read_text()
    assert [verb for verb in VERBS if f"vcsreplicator-{verb}(1)" not in page] == []
