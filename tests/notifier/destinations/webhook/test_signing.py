# SPDX-License-Identifier: GPL-2.0-or-later
"""Keys of webhooks: how a text becomes one, and that what is none is refused by its name."""

import base64
import random
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from hgext.vcsreplicator.cli.verbs import program
from hgext.vcsreplicator.demo.layout import PROGRAM
from hgext.vcsreplicator.service import EXIT_CONFIG
from hgext.vcsreplicator.words.errors import BadConfig, Refused
from notifier.clients.secret import Secret
from notifier.destinations.webhook.signing import WrongKey, find_wrong, read_keys, signing_key


def a_text(size: int) -> str:
    """What stands for a key of so many bytes."""
    return "whsec_" + base64.b64encode(random.Random(size).randbytes(size)).decode()


def write(folder: Path, text: str) -> Path:
    file = folder / "ci.key"
    file.write_text(text)
    file.chmod(0o600)
    return file


def test_a_text_with_the_prefix_is_base64_and_any_other_is_the_key() -> None:
    assert signing_key("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").hex().startswith("31f290f6bf06298a")
    assert signing_key("größe, and enough of the rest") == "größe, and enough of the rest".encode()


@pytest.mark.parametrize("size", [24, 64])
def test_keys_of_all_lengths_of_the_standard_are_taken(size: int) -> None:
    assert len(signing_key(a_text(size))) == size
    assert len(signing_key("x" * size)) == size


@pytest.mark.parametrize(
    "text",
    [
        *("whsec_", "whsec_%%%", "whsec_" + "é" * 30, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaS", "x", "x" * 23, "x" * 65),
        *(a_text(1), a_text(23), a_text(65), a_text(32) + " ", a_text(32).rstrip("=")),
    ],
)
def test_any_other_text_is_no_key_and_is_not_quoted(text: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="of 24 to 64 bytes") as refused:
        signing_key(text)
    assert len(text) < 2 or text not in str(refused.value).replace("behind whsec_", "")
    with pytest.raises(WrongKey, match=r"secrets\.0: .*ci\.key: expected "):
        read_keys([Secret(file=str(write(tmp_path, text)))])


def test_a_secret_that_cannot_be_read_is_left_to_the_attempts(tmp_path: Path) -> None:
    missing = Secret(file=str(tmp_path / "missing"))
    find_wrong([missing], "secrets")
    with pytest.raises(BadConfig, match=r"secrets\.0: .* cannot be read"):
        read_keys([missing])
    with pytest.raises(WrongKey, match=r"secrets\.1: "):
        find_wrong([missing, Secret(file=str(write(tmp_path, "short")))], "secrets")


@pytest.mark.processes
@pytest.mark.parametrize("verb", [("notifier",), ("config", "check")])
def test_a_secret_that_is_no_key_stops_at_the_start_with_its_name(verb: tuple[str, ...], tmp_path: Path) -> None:
    file, key = tmp_path / "v.toml", write(tmp_path, "whsec_")
    file.write_text(
        f'log = "sqlite://{tmp_path}/log.db"\n[public.urls]\n"" = "https://hg.example/"\n'
        f'[notifier]\nstate = "{tmp_path}/n.db"\n[notifier.hooks]\ntype = "webhook"\ndatabase = "{tmp_path}/h.db"\n'
        f'[notifier.hooks.subscriptions.ci]\nurl = "https://ci.example/"\nsecrets = [{{ file = "{key}" }}]\n'
    )
    done = subprocess.run([*PROGRAM, *verb, "--config", str(file)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (EXIT_CONFIG, 1)
    assert f"{file}: notifier.hooks.subscriptions.ci.secrets.0: {key}: expected base64 of 24 to 64 bytes" in done.stderr


def test_a_subscription_with_a_secret_that_is_no_key_is_not_added(tmp_path: Path) -> None:
    file, key = tmp_path / "v.toml", write(tmp_path, "x")
    file.write_text(
        f'log = "sqlite://{tmp_path}/log.db"\n[public.urls]\n"" = "https://hg.example/"\n'
        f'[notifier]\nstate = "{tmp_path}/n.db"\n[notifier.hooks]\ntype = "webhook"\ndatabase = "{tmp_path}/h.db"\n'
    )
    add = ["subscription", "add", "ci", "https://ci.example/", "--secret-file", str(key), "--config", str(file)]
    with pytest.raises(Refused, match=rf"--secret-file\.0: {key}: expected "):
        CliRunner().invoke(program, add, catch_exceptions=False)
    assert not (tmp_path / "h.db").exists()
