# SPDX-License-Identifier: GPL-2.0-or-later
"""Observing a transaction: equal changes give equal values on master and mirror, one transaction or several events in one."""

import io
import os
import random

import pytest
from mercurial import bookmarks, context, phases, requirements
from mercurial import ui as ui_module
from mercurial.node import hex, nullid

from hgext.vcsreplicator.hg import bundles, observe
from hgext.vcsreplicator.hg.replica.apply import unbundle
from hgext.vcsreplicator.words.digest import START, advance
from hgext.vcsreplicator.words.event import Type
from hgext.vcsreplicator.words.wire import UNPACKED_LIMIT
from pushlog.versions import factory, initialize

initialize()


@pytest.fixture
def new_repository(tmp_path):
    def new(name):
        user_interface = ui_module.ui.load()
        user_interface.setconfig(b"ui", b"quiet", True)
        user_interface.setconfig(b"experimental", b"evolution", b"all")
        user_interface.setconfig(b"phases", b"publish", False)
        user_interface.setconfig(b"phases", b"new-commit", b"draft")
        return factory.repository(user_interface, os.fsencode(tmp_path / name), create=True).unfiltered()

    return new


def commit(repository, *parents, text="x", phase=phases.draft):
    """A changeset without a working directory, in the running transaction."""
    parents = (*parents, nullid, nullid)[:2]

    def file(repo, ctx, path):
        return context.memfilectx(repo, ctx, path, text.encode())

    made = context.memctx(
        repository, parents, text.encode(), [text.encode()], file, user=b"dana", date=(0, 0), extra={}
    )
    with repository.ui.configoverride({(b"phases", b"new-commit"): phase}):
        return repository.commitctx(made)


def in_transaction(repository, act):
    """(what was observed, the bundle of it)."""
    with repository.wlock(), repository.lock(), repository.transaction(b"test") as tr:
        act(tr)
        changes = observe.observe(repository, tr)
        markers = observe.encode_markers(observe.markers_since(tr, observe.start(tr)))
        first = tr.changes[b"origrepolen"]
    return changes, b"".join(bundles.make_bundle(repository, first, len(repository), markers))


def random_act(repository, tr, chance):
    """A few commits, phase moves, bookmark moves and markers in one transaction."""
    nodes = [repository.changelog.node(rev) for rev in repository]
    for number in range(chance.randrange(4)):
        parents = chance.sample(nodes, min(len(nodes), chance.choice([0, 1, 1, 1, 2])))
        at_least = max((repository[node].phase() for node in parents), default=0)
        text = f"{len(nodes)}-{number}"
        nodes.append(commit(repository, *parents, text=text, phase=max(at_least, chance.choice(observe.PHASES))))
    if nodes and chance.random() < 0.5:
        phases.advanceboundary(repository, tr, chance.choice(observe.PHASES), chance.sample(nodes, 1))
    if nodes and chance.random() < 0.3:
        phases.retractboundary(repository, tr, chance.choice(observe.PHASES), chance.sample(nodes, 1))
    if nodes and chance.random() < 0.5:
        value = chance.choice([None, chance.choice(nodes)])
        repository._bookmarks.applychanges(repository, tr, [(chance.choice([b"one", b"two"]), value)])
    if len(nodes) > 1 and chance.random() < 0.5:
        old, new = chance.sample(nodes, 2)
        repository.obsstore.create(tr, old, (new,), date=(chance.randrange(9), 60), metadata={b"user": b"dana"})


def apply(repository, tr, changes, bundle):
    """What a mirror does with an event."""
    unbundle(repository, tr, io.BytesIO(bundle), UNPACKED_LIMIT)
    observe.move_phases(repository, tr, changes.phases)
    observe.move_bookmarks(repository, tr, {move.name: move.node for move in changes.bookmarks})


def looks(repository):
    changelog = repository.changelog
    return (
        [(hex(changelog.node(rev)), repository[rev].phase()) for rev in changelog],
        sorted(bookmarks.listbookmarks(repository).items()),
        sorted(observe.encode_markers(repository.obsstore)),
    )


def test_a_push_is_told_by_its_heads_and_the_parents_they_cover(new_repository):
    master = new_repository("master")
    nodes = []
    in_transaction(master, lambda tr: nodes.append(commit(master, text="root", phase=phases.public)))
    changes, _ = in_transaction(master, lambda tr: nodes.extend([commit(master, nodes[0], text=t) for t in "ab"]))
    assert changes.added.count == 2
    assert changes.heads_added == tuple(hex(node).decode() for node in nodes[1:])
    assert changes.heads_removed == (hex(nodes[0]).decode(),)


def test_a_changeset_added_draft_on_a_public_one_is_told_apart_from_it(new_repository):
    master, mirror = new_repository("master"), new_repository("mirror")
    chain = []

    def act(tr):
        chain.append(commit(master, text="public", phase=phases.public))
        chain.append(commit(master, chain[0], text="draft", phase=phases.draft))

    changes, bundle = in_transaction(master, act)
    in_transaction(mirror, lambda tr: apply(mirror, tr, changes, bundle))
    assert [mirror[rev].phase() for rev in mirror] == [phases.public, phases.draft]


@pytest.mark.parametrize("phase", [phases.archived, phases.internal])
def test_what_the_master_has_above_secret_arrives_secret(new_repository, phase):
    master, mirror = new_repository("master"), new_repository("mirror")
    master.requirements.update((requirements.ARCHIVED_PHASE_REQUIREMENT, requirements.INTERNAL_PHASE_REQUIREMENT))
    nodes = []

    def add(_tr):
        nodes.append(commit(master, text="public", phase=phases.public))
        nodes.append(commit(master, nodes[0], text="password", phase=phase))
        nodes.append(commit(master, nodes[1], text="more", phase=phase))

    in_transaction(master, add)
    changes = observe.added(master, 0, 3, push=None)
    bundle = b"".join(bundles.make_bundle(master, 0, 3))
    seen, _ = in_transaction(mirror, lambda tr: apply(mirror, tr, changes, bundle))
    assert [mirror[rev].phase() for rev in mirror] == [phases.public, phases.secret, phases.secret]
    assert seen == changes


@pytest.mark.parametrize("target", [phases.public, phases.draft, phases.secret])
def test_what_leaves_a_phase_above_secret_leaves_secret(new_repository, target):
    master, mirror = new_repository("master"), new_repository("mirror")
    master.requirements.update((requirements.ARCHIVED_PHASE_REQUIREMENT, requirements.INTERNAL_PHASE_REQUIREMENT))
    nodes = []
    in_transaction(master, lambda tr: nodes.append(commit(master, phase=phases.archived)))
    changes, bundle = observe.added(master, 0, 1, push=None), b"".join(bundles.make_bundle(master, 0, 1))
    in_transaction(mirror, lambda tr: apply(mirror, tr, changes, bundle))
    changes, bundle = in_transaction(master, lambda tr: phases.advanceboundary(master, tr, target, nodes))
    seen, _ = in_transaction(mirror, lambda tr: apply(mirror, tr, changes, bundle))
    assert mirror[0].phase() == target
    assert seen == changes


def test_a_bookmark_set_to_where_it_was_is_no_change(new_repository):
    master = new_repository("master")
    in_transaction(master, lambda tr: commit(master))
    move = [(b"here", master[0].node())]
    in_transaction(master, lambda tr: master._bookmarks.applychanges(master, tr, move))
    changes, _ = in_transaction(master, lambda tr: master._bookmarks.applychanges(master, tr, move))
    assert changes.bookmarks == ()


@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(6, 60))])
def test_mirrors_reach_the_masters_digest_in_one_transaction_or_many(new_repository, seed):
    master, apart, together = (new_repository(name) for name in ("master", "apart", "together"))
    chance = random.Random(seed)
    sent = [in_transaction(master, lambda tr: random_act(master, tr, chance)) for _ in range(8)]
    digests = {"master": START, "apart": START, "together": START}
    for changes, bundle in sent:
        seen, _ = in_transaction(apart, lambda tr, c=changes, b=bundle: apply(apart, tr, c, b))
        digests["master"] = advance(digests["master"], Type.CHANGED, changes)
        digests["apart"] = advance(digests["apart"], Type.CHANGED, seen)
    with together.wlock(), together.lock(), together.transaction(b"replicate") as tr:
        for changes, bundle in sent:
            since = observe.mark(together, tr)
            apply(together, tr, changes, bundle)
            seen = observe.observe(together, tr, since=since)
            digests["together"] = advance(digests["together"], Type.CHANGED, seen)
    assert looks(apart) == looks(master)
    assert looks(together) == looks(master)
    assert len(set(digests.values())) == 1, digests
