# SPDX-License-Identifier: GPL-2.0-or-later
"""Signed notices: the bytes are those of a golden file, and no part of one can be changed or come from another signer."""

import base64
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from hgext.vcsreplicator.keys.pairs import KeyPair, is_signed, make_key, read_keys
from hgext.vcsreplicator.keys.signed import check_notice, sign_ack, sign_notice
from hgext.vcsreplicator.words.errors import Refused
from hgext.vcsreplicator.words.records import Ack, Notice
from testing.builders.aggregator.chains import Chain
from testing.builders.notifier.notices import a_notice

GOLDEN = Path(__file__).with_name("golden")


class Signing:
    """A notice of event 3 that two mirrors gate: alpha, which signs, and beta, which does not."""

    def __init__(self, mirror: KeyPair, aggregator: KeyPair) -> None:
        self.mirror, self.aggregator, self.chain = mirror, aggregator, Chain("x")
        self.chain.take(4)

    @property
    def notice(self) -> Notice:
        return replace(a_notice(self.chain.events[2], {"changegroup.1": "5" * 32}), base=10)

    def ack(self, name: str, applied: int = 3, serving: int = 3) -> Ack:
        return self.chain.ack(name, applied, serving, time=1_700_000_010.25)

    def sign(self, *acks: Ack) -> str:
        return sign_notice(self.aggregator, self.notice, acks)

    def signed(self) -> str:
        return self.sign(sign_ack(self.mirror, self.ack("alpha")), self.ack("beta"))

    def refusal(self, line: str, **mirrors: KeyPair) -> str:
        """Why the line is refused by a receiver that trusts this aggregator, and these keys of mirrors."""
        with pytest.raises(Refused) as refused:
            check_notice(line, [self.aggregator.signing], {name: [key.signing] for name, key in mirrors.items()})
        return str(refused.value)


@pytest.fixture
def signing(tmp_path: Path) -> Signing:
    shutil.copy(GOLDEN / "key.1.txt", tmp_path / "key")
    (tmp_path / "key").chmod(0o600)
    return Signing(*read_keys(tmp_path / "key"))


def test_a_signed_notice_is_that_of_the_golden_file(signing: Signing) -> None:
    golden = (GOLDEN / "signed.1.txt").read_text().rstrip("\n")
    assert signing.signed() == golden
    found = check_notice(golden, [signing.aggregator.signing], {"alpha": [signing.mirror.signing]})
    assert found.key == signing.aggregator.signing
    assert (found.notice.sequence, found.notice.seq, found.notice.push) == (13, 3, 3)
    assert [(each.mirror, each.served_at, each.key) for each in found.mirrors] == [
        ("alpha", 1_700_000_010.25, signing.mirror.signing),
        ("beta", 1_700_000_010.25, None),
    ]


def test_a_signature_follows_from_the_description_of_its_format(signing: Signing) -> None:
    info = b"vcsreplicator signatures 1"
    seed = HKDF(SHA256(), length=32, salt=None, info=info).derive(signing.aggregator.private)
    key = Ed25519PrivateKey.from_private_bytes(seed)
    public, signature, text = signing.signed().split(" ", 2)
    assert public == "ed25519:" + base64.b64encode(key.public_key().public_bytes_raw()).decode()
    assert base64.b64decode(signature) == key.sign(text.encode())


Change = Callable[[dict[str, Any]], object]

MEMBERS: dict[str, object] = {
    "format": "vcsreplicator-notice 2",
    "repository": "0" * 32,
    "incarnation": "0" * 32,
    "path": "y",
    "seq": 4,
    "sequence": 14,
    "event": "0" * 32,
    "digest": "0" * 64,
    "previous": {"changegroup.1": None},
    "heads": "0" * 64,
    "push": 4,
    "roster": 2,
    "time": 1.0,
    "acks": [],
}


def test_each_member_of_a_signed_notice_is_tried_below(signing: Signing) -> None:
    assert MEMBERS.keys() == json.loads(signing.signed().split(" ", 2)[2]).keys()


@pytest.mark.parametrize("member", MEMBERS)
def test_a_notice_with_another_value_of_a_member_is_refused(signing: Signing, member: str) -> None:
    key, signature, text = signing.signed().split(" ", 2)
    changed = json.loads(text) | {member: MEMBERS[member]}
    line = f"{key} {signature} {json.dumps(changed, sort_keys=True, separators=(',', ':'))}"
    assert f"the signature of {key} does not match" in signing.refusal(line)


def test_a_notice_that_another_aggregator_signed_is_refused(signing: Signing, tmp_path: Path) -> None:
    other = Signing(signing.mirror, make_key(tmp_path / "other"))
    assert "not signed by a key that was given" in signing.refusal(other.signed())
    _, signature, text = other.signed().split(" ", 2)
    assert "does not match" in signing.refusal(f"{signing.aggregator.signing} {signature} {text}")


def test_the_key_of_a_mirror_signs_no_notice(signing: Signing) -> None:
    assert "not signed by a key" in signing.refusal(Signing(signing.mirror, signing.mirror).signed())


@pytest.mark.parametrize("line", ["", "x", "x y", "x y z", "ed25519:AAAA - {}", "\udcff \udcff \udcff"])
def test_what_is_no_signed_notice_is_refused(signing: Signing, line: str) -> None:
    assert "not signed by a key that was given" in signing.refusal(line)


def test_what_an_aggregator_signed_and_is_no_notice_is_refused(signing: Signing) -> None:
    for text in ("vcsreplicator-serving 1 x", "{}", "[]", json.dumps({"format": "vcsreplicator-notice 2"})):
        assert "not a notice that this program knows" in signing.refusal(f"{signing.aggregator.sign(text)} {text}")
    newer = signing.signed().split(" ", 2)[2].replace("notice 1", "notice 2")
    assert "upgrade this program" in signing.refusal(f"{signing.aggregator.sign(newer)} {newer}")


def test_an_aggregator_passes_no_forged_signature_of_a_mirror_on(signing: Signing, tmp_path: Path) -> None:
    rogue = make_key(tmp_path / "rogue")
    true = sign_ack(signing.mirror, signing.ack("alpha"))
    key, _, signature = (true.signature or "").partition(" ")
    forged = [
        replace(signing.ack("alpha"), signature=rogue.sign("something else")),
        replace(signing.ack("alpha"), signature=f"{key} {rogue.sign('').partition(' ')[2]}"),
        replace(signing.ack("beta"), signature=true.signature),
        replace(signing.ack("alpha", 4, 4), signature=true.signature),
        replace(true, served_at=1.0),
        replace(true, signature=f"{key}  {signature}"),
        replace(true, signature=f"x25519:{key[8:]} {signature}"),
        replace(true, signature=""),
    ]
    for ack in forged:
        [said] = check_notice(signing.sign(ack), [signing.aggregator.signing]).mirrors
        assert said.key is None, ack


def vouched(signing: Signing, ack: str) -> str:
    """A notice whose aggregator passes on a text that no mirror need have signed."""
    text = json.dumps(json.loads(signing.signed().split(" ", 2)[2]) | {"acks": [ack]})
    return f"{signing.aggregator.sign(text)} {text}"


def test_a_mirrors_forged_proof_is_refused_though_it_is_passed_on(signing: Signing, tmp_path: Path) -> None:
    rogue = make_key(tmp_path / "rogue")
    true = json.loads(signing.signed().split(" ", 2)[2])["acks"][0]
    key, signature, said = true.split(" ", 2)
    assert "does not match what it says" in signing.refusal(vouched(signing, true.replace(".25", ".26")))
    assert "does not match what it says" in signing.refusal(vouched(signing, true.replace("alpha", "gamma")))
    assert "does not match what it says" in signing.refusal(vouched(signing, f"{rogue.signing} {signature} {said}"))
    assert "not the statement of a mirror" in signing.refusal(vouched(signing, f"{key} {signature} alpha 3"))
    by_rogue = sign_ack(rogue, signing.ack("alpha"))
    assert "expected a key that was given for it" in signing.refusal(signing.sign(by_rogue), alpha=signing.mirror)
    assert "did not sign" in signing.refusal(signing.sign(signing.ack("alpha")), alpha=signing.mirror)


@pytest.mark.parametrize(("applied", "serving"), [(3, 2), (2, 2), (4, 2)])
def test_a_mirror_that_does_not_serve_the_event_proves_nothing(signing: Signing, applied: int, serving: int) -> None:
    line = signing.sign(sign_ack(signing.mirror, signing.ack("alpha", applied, serving)))
    assert "serves another event" in signing.refusal(line)


def test_a_mirror_that_serves_another_event_of_this_number_proves_nothing(signing: Signing) -> None:
    forked = replace(signing.ack("alpha"), digest="0" * 64)
    assert "serves another event" in signing.refusal(signing.sign(sign_ack(signing.mirror, forked)))


def test_a_mirror_that_serves_a_later_event_proves_this_one(signing: Signing) -> None:
    line = signing.sign(sign_ack(signing.mirror, signing.ack("alpha", 4, 4)))
    [said] = check_notice(line, [signing.aggregator.signing], {"alpha": [signing.mirror.signing]}).mirrors
    assert (said.applied, said.serving, said.key) == (4, 4, signing.mirror.signing)


def test_what_a_mirror_writes_cannot_break_the_form_of_a_notice(signing: Signing) -> None:
    hostile = sign_ack(signing.mirror, replace(signing.ack("alpha", 4, 4), event='x" \n', digest="\udcff"))
    line = signing.sign(hostile)
    assert line.isascii()
    assert line.isprintable()
    [said] = check_notice(line, [signing.aggregator.signing]).mirrors
    assert (said.event, said.digest) == ("-", "-")


def test_a_mirror_that_must_have_signed_cannot_be_left_out(signing: Signing) -> None:
    assert "mirror alpha is not among" in signing.refusal(signing.sign(signing.ack("beta")), alpha=signing.mirror)


def test_signatures_are_made_by_another_key_than_seals(signing: Signing) -> None:
    assert signing.aggregator.signing.partition(":")[2] != signing.aggregator.public.partition(":")[2]
    assert not is_signed("", signing.aggregator.public, "")
