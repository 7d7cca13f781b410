# SPDX-License-Identifier: GPL-2.0-or-later
"""Options and arguments that cannot be right are refused in one line, by the verb and before it begins."""

from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from hgext.vcsreplicator.cli.verbs import program
from hgext.vcsreplicator.log import topics
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.words.errors import ReplicationError
from notifier.destinations.webhook.deliveries import Deliveries

# What Python makes of a byte of an argument that is not text.
NO_TEXT = "\udcff"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The services' file of an installation with a mirror and a webhook destination."""
    (tmp_path / "repos").mkdir()
    (tmp_path / "x.toml").write_text(f"""
log = "sqlite://{tmp_path}/log.db"
[public.urls]
"" = "https://hg.example/"
[mirror.alpha]
root = "{tmp_path}/repos"
[notifier]
state = "{tmp_path}/notifier.db"
[notifier.hooks]
type = "webhook"
database = "{tmp_path}/deliveries.db"
""")
    with open_log(f"sqlite://{tmp_path}/log.db", creates=True) as log:
        log.create(topics())
    return tmp_path / "x.toml"


def run(file: Path, *words: str) -> Result:
    return CliRunner().invoke(program, [*words, "-c", str(file)])


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("verify", "alpha", "--patience", "100000"), "--patience"),
        (("verify", "alpha", "--continuous", "--repository", "one"), "--repository"),
        (("verify", "alpha", "--continuous", "--json"), "--json"),
        (("bootstrap", "alpha", "--workers", "1000"), "--workers"),
        (("replay", "--repository", "x", "--to", "hooks", "--since", "9" * 5000), "expected a time such as"),
        (("subscription", "add", "", "https://x.example"), "NAME"),
        (("subscription", "add", "a\nb", "https://x.example"), "NAME"),
        (("subscription", "add", "x" * 62, "https://x.example"), "NAME"),
        (("subscription", "add", NO_TEXT, "https://x.example"), "NAME"),
        (("subscription", "add", "ci", f"https://x.example/{NO_TEXT}"), "URL"),
        (("subscription", "add", "ci", "https://x.example/", "--header", f"X-Team: {NO_TEXT}"), "--header"),
        (("subscription", "add", "ci", "https://x.example/", "--type", NO_TEXT), "--type"),
        (("subscription", "add", "ci", "https://x.example/", "--filter", NO_TEXT), "--filter"),
        (("subscription", "add", "ci", "https://x.example/", "--secret-file", NO_TEXT), "--secret-file"),
        (("subscription", "pause", NO_TEXT), "NAME"),
        (("subscription", "remove", NO_TEXT, "--yes"), "NAME"),
        (("deliveries", "list", "--subscription", NO_TEXT), "--subscription"),
        (("deliveries", "redeliver", "--exhausted", NO_TEXT), "--exhausted"),
    ],
)
def test_what_cannot_be_right_is_a_mistake_of_usage(file: Path, words: tuple[str, ...], complaint: str) -> None:
    with closing(Deliveries(str(file.with_name("deliveries.db")))):
        done = run(file, *words)
    assert done.exit_code == 2, done.exception
    assert complaint in done.stderr
    assert len(done.stderr) < 1000


@pytest.mark.parametrize("count", ["0", "-1"])
def test_listen_counts_from_one(count: str) -> None:
    done = CliRunner().invoke(program, ["listen", "amqp://127.0.0.1/", "exchange/a/b", "--count", count])
    assert done.exit_code == 2
    assert "--count" in done.stderr


def test_a_url_to_listen_at_that_is_none_is_one_line_without_it() -> None:
    done = CliRunner().invoke(program, ["listen", "amqps://u:hunter2@[host", "exchange/x/y"])
    assert isinstance(done.exception, ReplicationError)
    assert str(done.exception).startswith("URL: expected amqps://USER@HOST/VHOST: ")
    assert "hunter2" not in str(done.exception)


def test_a_repository_named_in_the_place_of_a_mirror_is_told_its_option(file: Path) -> None:
    error = run(file, "verify", "alpha", "first").exception
    assert str(error) == (
        f"{file}: section [mirror.first] is missing (there are: alpha); to compare one repository, use: --repository first"
    )


@pytest.mark.usefixtures("within_the_run")
@pytest.mark.parametrize(
    ("names", "port", "key"),
    [
        (("alpha",), 9202, "listen.verify-alpha"),
        (("beta",), 9108, "listen.verify"),
        (("alpha", "beta"), 9108, "listen.verify"),
    ],
    ids=str,
)
def test_verify_of_one_mirror_listens_at_an_address_of_its_own(
    file: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], port: int, key: str
) -> None:
    text = file.read_text().replace("[mirror.alpha]", '[mirror.beta]\nroot = "/other"\n[mirror.alpha]')
    file.write_text(f'{text}[listen]\nverify = "127.0.0.1:9108"\nverify-alpha = "127.0.0.1:9202"\n')
    heard: list[object] = []

    def serve(stage: object, *, listen: tuple[str, int], key: str) -> int:
        heard.append((*listen, key.removeprefix(f"{file}: ")))
        return 0

    monkeypatch.setattr("hgext.vcsreplicator.cli.verify.serve", serve)
    assert run(file, "verify", "--continuous", *names).exit_code == 0
    assert heard == [("127.0.0.1", port, key)]
    assert "all sections are correct" in run(file, "config", "check").output


@pytest.mark.parametrize("option", ["-c", "--config"])
def test_the_services_file_is_the_variables_unless_an_option_names_one(file: Path, tmp_path: Path, option: str) -> None:
    other = tmp_path / "other.toml"
    other.write_text('log = "sqlite:///nowhere/log.db"\n')
    environment = {"VCSREPLICATOR_CONFIG": str(other)}
    by_variable = CliRunner().invoke(program, ["topics", "list"], env=environment)
    assert str(by_variable.exception).startswith(f"{other}: sqlite:///nowhere/log.db: ")
    by_option = CliRunner().invoke(program, ["topics", "list", option, str(file)], env=environment)
    assert by_option.exit_code == 0, by_option.exception
