An act that a kill interrupted is finished by the next process that changes the repository; other repositories are not affected.

  $ . "$TESTDIR/master.sh"
  $ cat > $TESTTMP/die.py <<'E'
  > """`die.at = MODULE.FUNCTION`: this process is killed when it comes there."""
  > import importlib, os, signal
  > def reposetup(ui, repo):
  >     module, _, name = ui.config(b"die", b"at", b"").decode().rpartition(".")
  >     module = importlib.import_module("hgext.vcsreplicator.hg.master." + module)
  >     setattr(module, name, lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL))
  > E
  $ dying() { at=$1; shift; hgm --config extensions.die=$TESTTMP/die.py --config die.at=$at "$@" 2>&1 | grep -v '^Killed'; }
  $ finish() { python "$TESTDIR/master-finish.py" $TESTTMP/repos; }

A deletion killed before its note was removed: the path is free for another repository.

  $ hgm init -q repos/one
  $ dying intents.remove -R repos/one replicatedelete --yes
  [1]
  $ ls repos/.vcsreplicator/intents | wc -l | tr -d ' '
  1
  $ hgm init repos/one
  (recorded repository creation in replication log in *s) (glob)
  $ ls repos/.vcsreplicator/intents
  $ events
  one 1 created origin=init after=0
  one 2 deleted after=0
  one 1 created generation=2 origin=init after=0

A second rename killed before its event: it is not mistaken for the first, whose event is written.

  $ hgm -R repos/one replicaterename -q --yes repos/two
  $ dying acts.moving.announce_renamed -R repos/two replicaterename --yes repos/three
  [1]
  $ hgm -R repos/two bookmark -r null x
  an interrupted rename is being finished
  abort: this repository was renamed
  [255]
  $ ls repos
  three
  $ hgm -R repos/three bookmark -r null x
  recorded push in replication log in *s (glob)
  $ events three
  three 3 renamed from=two after=0
  three 4 changed x=000000000000 after=0

The process that finishes a move leaves no lock in the moved repository.

  $ dying acts.moving.move -R repos/three replicaterename --yes repos/four
  [1]
  $ finish
  $ ls repos
  four
  $ ls repos/four/.hg/store/lock repos/four/.hg/wlock
  ls: cannot access 'repos/four/.hg/store/lock': No such file or directory
  ls: cannot access 'repos/four/.hg/wlock': No such file or directory
  [2]

A strip that the relay finishes, where no extension is loaded, changes the pushlog too. The relay does not wait for a process that
sends the repository's events: other notes would wait behind it.

  $ hgm init -q repos/cut
  $ hg clone -q ssh://x/$TESTTMP/repos/cut cut
  $ for text in a b; do echo $text > cut/file; hg -R cut commit -q -A -m $text; hg -R cut push -q; done
  $ dying repository.silenced -R repos/cut strip -q --no-backup 1
  [1]
  $ flock repos/cut/.hg/store/outbox.lock python "$TESTDIR/master-finish.py" $TESTTMP/repos
  $ ls repos/.vcsreplicator/intents | wc -l | tr -d ' '
  1
  $ finish
  $ ls repos/.vcsreplicator/intents
  $ hgm -R repos/cut verifypushlog
  pushlog entry has no nodes: #2
  pushlog contains all 1 changesets across 2 pushes
  $ hg -R cut push -q

A relay that is killed while it does so, once the journal names the first file to truncate, leaves no damaged store.

  $ echo c > cut/file; hg -R cut commit -q -m c; hg -R cut push -q
  $ dying repository.silenced -R repos/cut strip -q --no-backup 1
  [1]
  $ cat > $TESTTMP/die-relay.py <<'E'
  > import os, runpy, signal, sys
  > from mercurial import transaction
  > name = transaction.transaction._addentry
  > def named(tr, file, size):
  >     name(tr, file, size)
  >     if file == b"00changelog.i" and size:
  >         os.kill(os.getpid(), signal.SIGKILL)
  > transaction.transaction._addentry = named
  > runpy.run_path(sys.argv.pop(1), run_name="__main__")
  > E
  $ { python $TESTTMP/die-relay.py "$TESTDIR/master-finish.py" $TESTTMP/repos; :; } 2>&1 | grep -v 'Killed'
  [1]
  $ finish
  $ hgm -R repos/cut verify -q
  $ hgm -R repos/cut log -T '{rev} {desc}\n'
  0 a
  $ hg -R cut push -q

A bookmark on a stripped changeset moves to a kept one, even when the strip is killed before Mercurial moves it.

  $ cat > $TESTTMP/die-late.py <<'E'
  > """This process is killed when a strip is about to move bookmarks."""
  > import os, signal
  > def reposetup(ui, repo):
  >     class dying(repo.__class__):
  >         def transaction(self, desc, report=None):
  >             if desc == b"repair":
  >                 os.kill(os.getpid(), signal.SIGKILL)
  >             return super().transaction(desc, report)
  >     repo.__class__ = dying
  > E
  $ for text in d e; do echo $text > cut/file; hg -R cut commit -q -A -m $text; done; hg -R cut push -q -f
  $ hgm -R repos/cut bookmark -q -r tip here
  $ hgm --config extensions.die=$TESTTMP/die-late.py -R repos/cut strip -q --no-backup 1 2>&1 | grep -v '^Killed'
  [1]
  $ finish
  $ hgm -R repos/cut log -T '{rev} {desc} {bookmarks}\n'
  0 a here
  $ hg -R cut push -q
  $ hgm -R repos/cut verifypushlog 2> /dev/null
  pushlog contains all 5 changesets across 7 pushes

What other changesets a strip kept aside when it was killed comes back, and nothing else: a bundle of an earlier failure is neither
added nor removed. No backup is made that the order did not want, and one is made that it wanted.

  $ hg -R cut update -q 0
  $ for text in f g; do echo $text > cut/$text; hg -R cut commit -q -A -m $text; hg -R cut update -q 0; done
  $ hgm -R repos/cut strip -q --no-backup 1
  $ hg -R cut push -q -f -r 'desc(f) + desc(g)'
  $ hg -R cut bundle -q --base 0 -r 'desc(b)' early.hg
  $ mkdir repos/cut/.hg/strip-backup
  $ mv early.hg repos/cut/.hg/strip-backup/0123456789ab-01234567-temp.hg
  $ hgm --config extensions.die=$TESTTMP/die-late.py -R repos/cut strip -q --no-backup 'desc(f)' 2>&1 | grep -v '^Killed'
  [1]
  $ finish
  $ hgm -R repos/cut log -T '{rev} {desc} {bookmarks}\n'
  1 g 
  0 a here
  $ ls repos/cut/.hg/strip-backup
  0123456789ab-01234567-temp.hg
  $ dying repository.silenced -R repos/cut strip -q --no-backup 1
  [1]
  $ finish
  $ ls repos/cut/.hg/strip-backup
  0123456789ab-01234567-temp.hg
  $ hg -R cut push -q -f -r 'desc(g)'
  $ dying repository.silenced -R repos/cut strip -q 1
  [1]
  $ finish
  $ ls repos/cut/.hg/strip-backup | sed 's/.*-//' | sort
  backup.hg
  temp.hg

A strip that was killed is not finished in a share, which lacks the changesets that it set aside.

  $ hgm --config extensions.share= share -q -U repos/cut shared
  $ hg -R cut push -q -f -r 'desc(f) + desc(g)'
  $ hgm -R repos/cut strip -q --no-backup 'desc(g)'
  $ hg -R cut push -q -f -r 'desc(g)'
  $ cat > $TESTTMP/die-adding.py <<'E'
  > """This process is killed when a strip is about to add again what it set aside."""
  > import os, signal
  > from mercurial import exchange
  > exchange.readbundle = lambda *arguments: os.kill(os.getpid(), signal.SIGKILL)
  > E
  $ hgm --config extensions.die=$TESTTMP/die-adding.py -R repos/cut strip -q --no-backup 'desc(f)' 2>&1 | grep -v '^Killed'
  [1]
  $ hgm -R repos/cut log -T '{rev} {desc} {bookmarks}\n'
  0 a here
  $ hgm -R shared phase --public -r 0 --force
  abort: an interrupted strip is not finished in a share
  (the relay finishes it within a minute, or the next change of $TESTTMP/repos/cut does)
  [255]
  $ finish
  $ hgm -R repos/cut log -T '{rev} {desc} {bookmarks}\n'
  1 g 
  0 a here

A note that cannot be read, and a repository that cannot be opened, hold up no other.

  $ hgm init -q repos/a
  $ hgm init -q repos/z
  $ dying acts.moving.move -R repos/z replicaterename --yes repos/zz
  [1]
  $ dying acts.moving.move -R repos/a replicaterename --yes repos/aa
  [1]
  $ echo unheard-of >> repos/a/.hg/requires
  $ echo '{' > repos/.vcsreplicator/intents/00.json
  $ finish
  $TESTTMP/repos/.vcsreplicator/intents/00.json: Intent: not JSON: * (glob)
  $TESTTMP/repos/a: rename not finished: repository requires features unknown to this Mercurial: unheard-of
  $ ls repos
  a
  cut
  four
  zz

A change to a repository whose note cannot be read is refused, and the message names the file.

  $ for note in repos/.vcsreplicator/intents/*.json; do echo '{' > $note; done
  $ sed -i /unheard-of/d repos/a/.hg/requires
  $ hgm -R repos/a bookmark -r null x
  abort: $TESTTMP/repos/.vcsreplicator/intents/*.json: Intent: not JSON: * (glob)
  (look at what became of this repository, then remove that file)
  [255]
  $ rm repos/.vcsreplicator/intents/*.json
  $ hgm -R repos/a bookmark -r null x
  abort: this repository was aa and is a now
  (if it was moved, run 'hg replicaterename'; if it is a copy, run 'hg replicateadopt')
  [255]
  $ hgm -R repos/a replicaterename -q --yes
  $ hgm -R repos/a bookmark -r null x
  recorded push in replication log in *s (glob)
