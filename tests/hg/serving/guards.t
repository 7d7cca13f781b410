Ways into a mirror that go past a view: commands of old clients, and bundles that were made before, which hold all that the disk held.

  $ cat >> "$HGRCPATH" << EOF
  > [extensions]
  > *:required = yes
  > pushlog =
  > [web]
  > server-header = no
  > allow-push = *
  > push_ssl = no
  > [server]
  > pullbundle = yes
  > EOF
  $ release() { HGRCPATH="$HGRCPATH:$TESTTMP/role.hgrc" "$PYTHON" "$TESTDIR/release.py" "$@"; }
  $ hg init repo; cd repo
  $ for i in 0 1 2; do echo $i > file; hg commit -qAm "change $i" -d "$i 0"; done
  $ hg phase --public tip
  $ node=$(hg log -r 1 -T '{node}'); late=$(hg log -r 2 -T '{node}')
  $ mkdir .hg/bundle-cache
  $ hg bundle -q --all .hg/bundle-cache/full.hg -t gzip-v2
  $ hg bundle -q --all .hg/pull.hg -t gzip-v2
  $ echo 'pull.hg BUNDLESPEC=gzip-v2' > .hg/pullbundles.manifest
  $ echo 'peer-bundle-cache://full.hg BUNDLESPEC=gzip-v2' > .hg/clonebundles.manifest
  $ cd ..
  $ cat > role.hgrc << EOF
  > [extensions]
  > *:required = yes
  > vcsreplicator =
  > [vcsreplicator]
  > role = mirror
  > EOF
  $ cat > ask.py << EOF
  > import sys, zlib
  > from mercurial import error, ui
  > from pushlog.versions import factory, initialize
  > from mercurial.node import bin
  > initialize()
  > ui = ui.ui.load()
  > ui.setconfig(b"ui", b"ssh", b'"$PYTHON" "$RUNTESTDIR/dummyssh"')
  > def say(what, ask):  # each of a server of its own, which an abort ends
  >     try:
  >         print(what, ask(factory.peer(ui, {}, sys.argv[1].encode())))
  >     except (error.Abort, error.RepoError, error.ResponseError, OSError):
  >         print(what, False)
  > say("bookmark:", lambda peer: peer.pushkey(b"bookmarks", b"mine", b"", b"$node"))
  > say("phase:", lambda peer: peer.pushkey(b"phases", b"$node", b"0", b"1"))
  > say("manifest:", lambda peer: len(peer._call(b"clonebundles_manifest")) > 0)
  > say("inline bundle:", lambda peer: len(peer._callstream(b"get_cached_bundle_inline", path=b"full.hg").read(50)) == 50)
  > EOF
  $ serve() {
  >   HGRCPATH="$HGRCPATH:$TESTTMP/role.hgrc" hg serve -R repo -p $HGPORT -d --pid-file hg.pid -E errors.log; cat hg.pid >> $DAEMON_PIDS
  > }
  $ over_ssh() { HGRCPATH="$HGRCPATH:$TESTTMP/role.hgrc" "$@"; }

While the third changeset is not released, none of them gives it, and nothing is pushed.

  $ release repo 2
  $ serve
  $ "$PYTHON" ask.py http://localhost:$HGPORT/ 2>&1 | grep -v '^remote\|^$'
  bookmark: False
  phase: False
  manifest: False
  inline bundle: False
  $ over_ssh "$PYTHON" ask.py ssh://user@dummy/repo 2>&1 | grep 'False\|True'
  bookmark: False
  phase: False
  manifest: False
  inline bundle: False
  $ hg clone -q http://localhost:$HGPORT/ pulled; hg -R pulled log -T '{desc}\n'
  change 1
  change 0
  $ hg -R repo bookmarks
  no bookmarks set
  $ hg -R repo log -T '{phase}\n'
  public
  public
  public

Released, the bundles are given; nothing is pushed still.

  $ release repo 3
  $ "$PYTHON" ask.py http://localhost:$HGPORT/ 2>&1 | grep -v '^remote\|^$'
  bookmark: False
  phase: False
  manifest: True
  inline bundle: True
  $ hg clone -q http://localhost:$HGPORT/ whole; hg -R whole log -T '{desc}\n'
  change 2
  change 1
  change 0
  $ hg -R repo bookmarks
  no bookmarks set

A mirror that shall refuse when it is stale refuses clients over SSH and by path, until it hears of the aggregator again.

  $ printf "refuse-when-stale = $TESTTMP/fresh\n" >> role.hgrc
  $ identify() { over_ssh hg identify -i -r tip "$1" --config ui.ssh="\"$PYTHON\" \"$RUNTESTDIR/dummyssh\""; }
  $ identify ssh://user@dummy/repo
  remote: abort: this mirror does not know what is released now; please retry, or use another mirror
  abort: no suitable response from remote hg
  [255]
  $ identify repo/../repo
  abort: this mirror does not know what is released now; please retry, or use another mirror
  [255]
  $ touch fresh; identify ssh://user@dummy/repo; identify repo/../repo
  ed51d10d1b1e
  ed51d10d1b1e

A master gives its bundles and streams, which wait for no release.

  $ rm repo/.hg/replicated-*
  $ cat > role.hgrc << EOF
  > [extensions]
  > *:required = yes
  > vcsreplicator =
  > [vcsreplicator]
  > role = master
  > relay = /nowhere
  > [vcsreplicator-roots]
  > $TESTTMP = .
  > EOF
  $ over_ssh "$PYTHON" ask.py ssh://user@dummy/repo 2>&1 | grep 'manifest\|inline'
  manifest: True
  inline bundle: True
  $ over_ssh hg debugcapabilities ssh://user@dummy/repo --config ui.ssh="\"$PYTHON\" \"$RUNTESTDIR/dummyssh\"" | grep -c ' streamreqs='
  1
