A new repository below a root is announced, however it was made.

  $ . "$TESTDIR/master.sh"
  $ hg init source
  $ cd source
  $ echo a > a
  $ hg commit -qAm a
  $ hg phase --public .
  $ cd ..

  $ hgm init repos/plain
  (recorded repository creation in replication log in *s) (glob)
  $ hgm clone -q --pull source repos/pulled
  $ hgm clone -q source repos/linked
  $ hgm clone -q --stream --config ui.ssh=$TESTTMP/ssh ssh://user@dummy/$TESTTMP/source repos/streamed
  $ hg init ssh://user@dummy/$TESTTMP/repos/remote
  (recorded repository creation in replication log in *s) (glob)
  $ hg clone -q source ssh://user@dummy/$TESTTMP/repos/pushed
  (recorded repository creation in replication log in *s) (glob)
  $ hgm init repos/deep/er/project
  (recorded repository creation in replication log in *s) (glob)
  $ events
  deep/er/project 1 created origin=init after=0
  linked 1 created origin=clone (master) after=1
  plain 1 created origin=init after=0
  pulled 1 created origin=init after=0
  pulled 2 changed +1 heads+1 (inline) after=1
  pushed 1 created origin=init after=0
  pushed 2 changed +1 heads+1 push=1 by tester (inline) after=1
  remote 1 created origin=init after=0
  streamed 1 created origin=init after=0
  streamed 2 changed +1 heads+1 (inline) after=1

A share has the store of another repository: the same identity, one chain of events. Its bookmarks are its own, unless it was made
to share them, and the process has the extension that writes them there.

  $ hgm --config extensions.share= share -q -U repos/plain shared
  $ hgm --config extensions.share= share -q -U -B repos/plain shared-too
  $ hg -R source push -q repos/plain --config extensions.vcsreplicator=!
  $ hgm -R shared bookmark -r tip mine
  $ hgm -R shared bookmark -r 0 mine-too
  $ hgm --config extensions.share= -R shared-too bookmark -r tip here
  recorded push in replication log in *s (glob)
  $ hgm -R shared-too bookmark -r tip not-there
  $ hgm -R repos/plain bookmarks
     here                      0:cb9a9f314b8b
  $ events plain
  plain 1 created origin=init after=0
  plain 2 sync bootstrap=false reason=outside (master) after=1
  plain 3 changed here=cb9a9f314b8b after=1

Acts upon a whole repository are refused in a share: the question would name the share, the act would concern its repository.

  $ hgm -R shared replicatedelete --yes
  abort: $TESTTMP/shared is a share of a replicated repository
  (run this in $TESTTMP/repos/plain)
  [255]
  $ hgm -R shared replicaterename --yes repos/moved
  abort: $TESTTMP/shared is a share of a replicated repository
  (run this in $TESTTMP/repos/plain)
  [255]
  $ hgm -R shared-too replicateadopt --yes
  abort: $TESTTMP/shared-too is a share of a replicated repository
  (run this in $TESTTMP/repos/plain)
  [255]
  $ hgm --config extensions.share= share -q -U repos/plain repos/shared
  $ hgm -R repos/shared replicaterename --yes
  abort: $TESTTMP/repos/shared is a share of a replicated repository
  (run this in $TESTTMP/repos/plain)
  [255]
  $ rm -r repos/shared
  $ ls -d repos/plain
  repos/plain
  $ events plain | tail -1
  plain 3 changed here=cb9a9f314b8b after=1

A format upgrade writes no event.

  $ hgm -R repos/plain debugupgraderepo --run --optimize re-delta-all -q > /dev/null
  $ ls repos/plain/.hg/store | grep outbox
  outbox.0001.log
  outbox.lock
  outbox.sent
  $ hgm -R repos/plain bookmark -r tip there
  recorded push in replication log in *s (glob)
  $ events plain | tail -1
  plain 4 changed there=cb9a9f314b8b after=1

A repository older than the extension is announced with its first change.

  $ HGRCPATH=$HGRCPATH hg clone -q -U source repos/before
  $ hgm -R repos/before bookmark -r tip here
  recorded push in replication log in *s (glob)
  $ events before
  before 1 created origin=adopted (master) after=1
  before 2 changed here=cb9a9f314b8b after=1

A transaction that fails takes no generation: a later repository at the path would wait for the one that never was there.

  $ HGRCPATH=$HGRCPATH hg init repos/refused
  $ cat > full.py <<'E'
  > import errno, os
  > def append(*_): raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
  > def reposetup(ui, repo):
  >     from hgext.vcsreplicator.outbox.file import Outbox
  >     Outbox.append = append
  > E
  $ hgm -R repos/refused bookmark -r null x --config extensions.full=full.py
  transaction abort!
  rollback completed
  abort: No space left on device
  [255]
  $ hgm -R repos/refused bookmark -r null x
  recorded push in replication log in *s (glob)
  $ events refused
  refused 1 created origin=adopted after=0
  refused 2 changed x=000000000000 after=0

A name that mirrors could not have.

  $ hgm init 'repos/~tilde'
  config error: repository path '~tilde': the part '~tilde' begins or ends with a character that is not allowed; rename the repository
  [255]
