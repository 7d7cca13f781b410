A push brings changesets and what belongs to them. A bundle with another part is refused before the repository is locked: a part can
name an address, and Mercurial would fetch that while all others wait for the repository.

  $ . "$TESTDIR/master.sh"
  $ hgm init -q repos/one
  $ serves() { python "$TESTDIR/send-bundle.py" "$1" "$2"; }
  $ ssh=ssh://user@dummy/$TESTTMP/repos/one
  $ python "$TESTDIR/make-bundle.py" fetch.hg remote-changegroup url=http://127.0.0.1:1/x size=1
  $ python "$TESTDIR/make-bundle.py" within.hg changegroup/remote-changegroup url=http://127.0.0.1:1/x size=1
  $ python "$TESTDIR/make-bundle.py" stream.hg stream2 requirements= filecount=0 bytecount=0

Another process has the lock meanwhile, and no push waits for it.

  $ cat > impatient.hgrc <<E
  > [ui]
  > timeout = 1
  > E
  $ MASTER_TOO=$TESTTMP/impatient.hgrc
  $ export MASTER_TOO
  $ ln -s "$(hostname)/$(python -c 'import os; print("%x" % os.stat("/proc/self/ns/pid").st_ino)'):$$" repos/one/.hg/store/lock
  $ for bundle in fetch within stream; do serves $ssh $bundle.hg; done
  abort: a push cannot bring this part: 'remote-changegroup'
  abort: a push cannot bring this part: 'remote-changegroup'
  abort: a push cannot bring this part: 'stream2'
  $ rm repos/one/.hg/store/lock

A client reads why.

  $ cat > bring.py <<E
  > from mercurial import exchange
  > @exchange.b2partsgenerator(b"bring", idx=0)
  > def bring(pushop, bundler):
  >     bundler.newpart(b"remote-changegroup", [(b"url", b"http://127.0.0.1:1/"), (b"size", b"1")])
  > E
  $ hg clone -q $ssh clone
  $ cd clone
  $ echo a > a
  $ hg commit -qAm a
  $ hg push --config extensions.bring=$TESTTMP/bring.py
  pushing to ssh://user@dummy/$TESTTMP/repos/one
  searching for changes
  remote: a push cannot bring this part: 'remote-changegroup'
  remote: (a push brings changesets, phases, bookmarks and markers; push with hg push)
  abort: push failed on remote
  [100]
  $ cd ..

Over HTTP, and by path.

  $ cat > web.hgrc <<E
  > [web]
  > push_ssl = no
  > allow_push = *
  > [ui]
  > timeout = 1
  > E
  $ HGRCPATH=$TESTTMP/master.hgrc:$TESTTMP/web.hgrc hg serve -R repos/one -p $HGPORT -d --pid-file hg.pid -E errors.log
  $ cat hg.pid >> $DAEMON_PIDS
  $ for bundle in fetch within stream; do serves http://localhost:$HGPORT/ $bundle.hg; done
  abort: a push cannot bring this part: 'remote-changegroup'
  abort: a push cannot bring this part: 'remote-changegroup'
  abort: a push cannot bring this part: 'stream2'
  $ hg -R clone push --config extensions.bring=$TESTTMP/bring.py http://localhost:$HGPORT/
  pushing to http://localhost:$HGPORT/
  searching for changes
  remote: a push cannot bring this part: 'remote-changegroup'
  remote: (a push brings changesets, phases, bookmarks and markers; push with hg push)
  abort: push failed on remote
  [100]
  $ HGRCPATH=$HGRCPATH:$TESTTMP/master.hgrc hg -R clone push --config extensions.bring=$TESTTMP/bring.py repos/one
  pushing to repos/one
  searching for changes
  abort: a push cannot bring this part: 'remote-changegroup'
  (a push brings changesets, phases, bookmarks and markers; push with hg push)
  [255]
  $ cat errors.log

The capability to fetch is not offered, and a file that an operator unbundles has nothing fetched.

  $ hg debugcapabilities $ssh | grep -c remote-changegroup
  0
  [1]
  $ hgm -R repos/one unbundle fetch.hg
  abort: fetch.hg: unknown bundle feature, remote-changegroup
  (see https://mercurial-scm.org/wiki/BundleFeature for more information)
  [255]
  $ hgm -R repos/one unbundle within.hg
  adding changesets
  transaction abort!
  rollback completed
  abort: within.hg: unknown bundle feature, remote-changegroup
  (see https://mercurial-scm.org/wiki/BundleFeature for more information)
  [255]

A push without such parts is as before.

  $ hg -R clone push -q
  $ hgm -R repos/one log -T '{desc}\n'
  a
