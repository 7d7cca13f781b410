# SPDX-License-Identifier: GPL-2.0-or-later
"""The format of seals and key files: fixed by golden files, made from private keys that are no secret."""

import hashlib
import hmac
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from hgext.vcsreplicator.keys.pairs import KeyPair, agree, make_key, read_keys, write_keys
from hgext.vcsreplicator.keys.seal import decode_public_key, encode_public_key, is_sealed, make_seal, read_seal
from hgext.vcsreplicator.words.errors import BadConfig

GOLDEN = Path(__file__).with_name("golden")
KEY, VALUE = "alpha/" + "a" * 32, b'{"applied":1}'
EPOCH, SERIAL = 3, 1_700_000_000_000_000


@pytest.fixture
def pairs(tmp_path: Path) -> tuple[KeyPair, ...]:
    """The mirror's key and the aggregator's, of the golden file."""
    shutil.copy(GOLDEN / "key.1.txt", tmp_path / "key")
    (tmp_path / "key").chmod(0o600)
    return read_keys(tmp_path / "key")


def test_a_file_of_keys_is_that_of_the_golden_file(pairs: tuple[KeyPair, ...], tmp_path: Path) -> None:
    assert [pair.private for pair in pairs] == [bytes(range(32)), bytes(range(32, 64))]
    write_keys(tmp_path / "again", pairs)
    assert (tmp_path / "again").read_bytes() == (GOLDEN / "key.1.txt").read_bytes()


def test_a_seal_is_that_of_the_golden_file_for_both_sides(pairs: tuple[KeyPair, ...]) -> None:
    mirror, aggregator = pairs
    golden = (GOLDEN / "seal.1.txt").read_text().strip()
    for own in pairs:
        agreed = agree(own, mirror=mirror.public, aggregator=aggregator.public)
        assert agreed is not None
        assert make_seal((agreed,), key=KEY, value=VALUE, epoch=EPOCH, serial=SERIAL) == golden
        seal = read_seal(golden)
        assert seal is not None
        assert is_sealed(seal, {agreed.pair: agreed}, key=KEY, value=VALUE)


def test_the_golden_seal_follows_from_the_description_of_its_format(pairs: tuple[KeyPair, ...]) -> None:
    mirror, aggregator = pairs
    names = f"{mirror.public} {aggregator.public}".encode()
    other = X25519PublicKey.from_public_bytes(decode_public_key(aggregator.public) or b"")
    shared = X25519PrivateKey.from_private_bytes(mirror.private).exchange(other)
    info = b"vcsreplicator seal of acks 1 " + names
    secret = HKDF(SHA256(), length=32, salt=None, info=info).derive(shared)
    text = b"vcsreplicator ack 1\0" + struct.pack(">QQI", EPOCH, SERIAL, len(KEY)) + KEY.encode() + b"\1" + VALUE
    mac = hmac.new(secret, text, hashlib.sha256).hexdigest()
    seal = f"1 {EPOCH} {SERIAL} {hashlib.sha256(names).hexdigest()[:16]}:{mac}\n"
    assert seal == (GOLDEN / "seal.1.txt").read_text()


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "1 1 1",
        "1 1 1 x:y",
        f"1 1 -1 {'a' * 16}:{'b' * 64}",
        f"1 1 {2**63} {'a' * 16}:{'b' * 64}",
        f"1 1 1 {'a' * 16}:{'b' * 64}\n",
        f"1 ١ 1 {'a' * 16}:{'b' * 64}",
        "1 1 1" + f" {'a' * 16}:{'b' * 64}" * 1000,
    ],
)
def test_no_header_of_another_form_is_a_seal(header: str | None) -> None:
    assert read_seal(header) is None


@pytest.mark.parametrize(
    "key", ["", "x25519:", "x25519:ü", encode_public_key(bytes(32)), encode_public_key(b"\1" + bytes(31))]
)
def test_with_what_is_no_key_or_a_weak_one_no_secret_is_made(pairs: tuple[KeyPair, ...], key: str) -> None:
    assert agree(pairs[1], mirror=key, aggregator=pairs[1].public) is None


def test_a_file_of_keys_that_others_may_read_is_refused(tmp_path: Path) -> None:
    make_key(tmp_path / "key")
    (tmp_path / "key").chmod(0o640)
    with pytest.raises(BadConfig, match="expected 0600 or stricter"):
        read_keys(tmp_path / "key")


@pytest.mark.parametrize("text", ["rubbish", "x25519-private:", "x25519-private:!!", "x25519-private:AAAA", "\xff"])
def test_a_damaged_file_of_keys_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "key").write_text(text)
    (tmp_path / "key").chmod(0o600)
    with pytest.raises(
        BadConfig, match="expected a file of keys that `vcsreplicator key` made: not in the form"
    ) as error:
        read_keys(tmp_path / "key")
    assert text not in str(error.value).removeprefix(str(tmp_path))


def test_a_file_of_keys_is_its_owners_alone_and_has_two_keys_at_most(tmp_path: Path) -> None:
    made = [make_key(tmp_path / "key") for _ in range(3)]
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    assert read_keys(tmp_path / "key") == (made[2], made[1])
    assert "AAA" not in repr(KeyPair(bytes(32), made[1].public))
    assert made[1].public in repr(made[1])


@pytest.mark.processes
def test_a_roster_and_its_keys_are_read_without_the_signing_library() -> None:
    code = "import sys, hgext.vcsreplicator.words.roster, hgext.vcsreplicator.keys.pairs; sys.exit('cryptography' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
