A pusher dies in the middle of a transaction: readers do not see what it left, and the next push succeeds.

  $ . "$TESTDIR/master.sh"
  $ hgm init repos/one -q
  $ cat > slay.py <<E
  > import os, signal
  > def reposetup(ui, repo):
  >     if repo.local():
  >         class killing(repo.__class__):
  >             def transaction(self, desc, report=None):
  >                 tr = super().transaction(desc, report)
  >                 tr.addfinalize(b'~~kill', lambda tr: os.kill(os.getpid(), signal.SIGKILL))
  >                 return tr
  >         repo.__class__ = killing
  > E
  $ hg clone -q ssh://user@dummy/$TESTTMP/repos/one clone
  $ cd clone
  $ echo a > a
  $ hg commit -qAm a
  $ printf '[extensions]\nslay = '$TESTTMP'/slay.py\n' > ../slay.hgrc
  $ MASTER_TOO=$TESTTMP/slay.hgrc hg push -q ssh://user@dummy/$TESTTMP/repos/one 2> /dev/null
  [255]
  $ ls ../repos/one/.hg/store | grep 'journal$'
  journal

A reader sees what was there before, and the next push succeeds. The first process that opens the repository rolls back.

  $ hg id -r tip ssh://user@dummy/$TESTTMP/repos/one
  000000000000
  $ ls ../repos/one/.hg/store | grep 'journal$'
  [1]
  $ hg push -q
  $ hgm -R ../repos/one verifypushlog
  pushlog contains all 1 changesets across 1 pushes
  $ events
  one 1 created origin=init after=0
  one 2 changed +1 heads+1 push=1 by tester (inline) after=1

A pusher dies in a share, when its bookmark is written and the push is not committed. Mercurial keeps the backup of the bookmarks in the
share: rolled back without it, the repository would lose its own.

  $ cat > ../slay-late.py <<E
  > import os, signal
  > def reposetup(ui, repo):
  >     if repo.local():
  >         class killing(repo.__class__):
  >             def transaction(self, desc, report=None):
  >                 tr = super().transaction(desc, report)
  >                 die = lambda: os.kill(os.getpid(), signal.SIGKILL)
  >                 tr.addfilegenerator(b'~~die', (), die, location=b'plain', post_finalize=True)
  >                 return tr
  >         repo.__class__ = killing
  > E
  $ printf '[extensions]\nslay = '$TESTTMP'/slay-late.py\n' > ../slay-late.hgrc
  $ hgm -R ../repos/one bookmark -q -r 0 own
  $ hgm --config extensions.share= share -q -U ../repos/one ../shared
  $ hgm -R ../shared bookmark -q -r 0 before
  $ echo b > b
  $ hg commit -qAm b
  $ hg bookmark moved
  $ die_in() { MASTER_TOO=$TESTTMP/slay-late.hgrc hg push -q -B moved ssh://user@dummy/$TESTTMP/$1 2> /dev/null; }
  $ die_in shared
  [255]
  $ hg id -r tip ssh://user@dummy/$TESTTMP/repos/one
  cb9a9f314b8b own
  $ hgm -R ../repos/one bookmarks
     own                       0:cb9a9f314b8b
  $ hgm -R ../shared bookmarks
     before                    0:cb9a9f314b8b

The same, but a process that opens the share rolls back a push that died in the repository, and the relay one that died in a share.

  $ die_in repos/one
  [255]
  $ hgm -R ../shared bookmarks
  rolling back interrupted transaction
     before                    0:cb9a9f314b8b
  $ hgm -R ../repos/one bookmarks
     own                       0:cb9a9f314b8b
  $ die_in shared
  [255]
  $ python "$TESTDIR/master-recover.py" $TESTTMP/repos one
  rolled back
  $ hgm -R ../repos/one bookmarks
     own                       0:cb9a9f314b8b
  $ hgm -R ../shared bookmarks
     before                    0:cb9a9f314b8b

A process without the extension died in the share: neither is its journal taken for one of the repository.

  $ printf '[extensions]\nslay = '$TESTTMP'/slay-late.py\n' > ../slay-plain.hgrc
  $ HGRCPATH=$TESTTMP/slay-plain.hgrc hg -R ../shared bookmark -r 0 other 2> /dev/null
  [137]
  $ hgm -R ../repos/one bookmarks
  rolling back interrupted transaction
  failed to recover branch (*) (glob)
  failed to recover bookmarks (*) (glob)
     own                       0:cb9a9f314b8b
  $ HGRCPATH=$TESTTMP/slay-plain.hgrc hg -R ../shared bookmark -r 0 another 2> /dev/null
  [137]
  $ hgm -R ../shared bookmarks
  rolling back interrupted transaction
     before                    0:cb9a9f314b8b
     other                     0:cb9a9f314b8b

A share that was removed meanwhile had the only backup of its own bookmarks.

  $ die_in shared
  [255]
  $ rm -r ../shared
  $ hg push -q -B moved
  remote: failed to recover branch (*: b'$TESTTMP/repos/one/.hg/journal.elsewhere/journal.backup.branch.bck') (glob)
  remote: failed to recover bookmarks (*: b'$TESTTMP/repos/one/.hg/journal.elsewhere/journal.backup.bookmarks.bck') (glob)
  $ hgm -R ../repos/one bookmarks
     moved                     1:* (glob)
     own                       0:cb9a9f314b8b

A pusher dies after the commit in a share that was made to share bookmarks: the repository has the bookmark, which the event announces.

  $ hgm --config extensions.share= share -q -U -B ../repos/one ../shared
  $ cat > ../slay-after.py <<E
  > import os, signal
  > def reposetup(ui, repo):
  >     if repo.local():
  >         class killing(repo.__class__):
  >             def transaction(self, desc, report=None):
  >                 tr = super().transaction(desc, report)
  >                 tr.addpostclose(b'!', lambda tr: os.kill(os.getpid(), signal.SIGKILL))
  >                 return tr
  >         repo.__class__ = killing
  > E
  $ printf '[extensions]\nshare =\nslay = '$TESTTMP'/slay-after.py\n' > ../slay-after.hgrc
  $ hg bookmark -r . there
  $ MASTER_TOO=$TESTTMP/slay-after.hgrc hg push -q -B there ssh://user@dummy/$TESTTMP/shared 2> /dev/null
  [255]
  $ hgm -R ../repos/one bookmarks
     moved                     1:* (glob)
     own                       0:cb9a9f314b8b
     there                     1:* (glob)
  $ hg push -q -B there ssh://user@dummy/$TESTTMP/shared
  [1]

Before the commit it dies with the bookmark that it wrote to the repository.

  $ printf '[extensions]\nshare =\nslay = '$TESTTMP'/slay-late.py\n' > ../slay-late.hgrc
  $ hg bookmark -r . nowhere
  $ MASTER_TOO=$TESTTMP/slay-late.hgrc hg push -q -B nowhere ssh://user@dummy/$TESTTMP/shared 2> /dev/null
  [255]
  $ cut -c 42- ../repos/one/.hg/bookmarks
  moved
  nowhere
  own
  there
  $ hgm -R ../repos/one bookmarks -T '{bookmark}\n'
  rolling back interrupted transaction
  moved
  own
  there
  $ hg push -q -B nowhere
  [1]
  $ rm -r ../shared

Killed after the commit, before Mercurial removed the list of backups: a kill at the beginning of the next transaction does not undo the first.

  $ cat > ../slay-at.py <<E
  > import os, signal
  > from mercurial import extensions, transaction, vfs
  > die = lambda: os.kill(os.getpid(), signal.SIGKILL)
  > def write_undo(orig, tr):
  >     orig(tr)
  >     die()
  > def open_file(orig, self, path, mode=b'r', *arguments, **keywords):
  >     return die() if (path, mode) == (b'journal.backupfiles', b'w') else orig(self, path, mode, *arguments, **keywords)
  > def extsetup(ui):
  >     if ui.config(b'slay', b'at') == b'end':
  >         extensions.wrapfunction(transaction.transaction, '_writeundo', write_undo)
  >     else:
  >         extensions.wrapfunction(vfs.vfs, '__call__', open_file)
  > E
  $ slain() { hgm -R ../repos/one --config extensions.slay=$TESTTMP/slay-at.py --config slay.at=$1 bookmark -q -f -r $2 own 2> /dev/null; }
  $ slain end 1
  [137]
  $ slain begin 0
  [137]
  $ hgm -R ../repos/one log -r own -T '{rev}\n'
  rolling back interrupted transaction
  1
  $ hgm -R ../repos/one bookmark -q -f -r 0 own 2> /dev/null

A power cut may tear the line of a backup whose file was not touched yet.

  $ : > ../repos/one/.hg/store/journal
  $ printf '2\nplain\0book' > ../repos/one/.hg/store/journal.backupfiles
  $ hg id -r tip ssh://user@dummy/$TESTTMP/repos/one
  * moved/nowhere/there (glob)
  $ ls ../repos/one/.hg/store | grep journal
  [1]

A transaction that cannot be rolled back does not lock out readers.

  $ printf '00changelog.i\0009999\n' > ../repos/one/.hg/store/journal
  $ hg id -r tip ssh://user@dummy/$TESTTMP/repos/one
  remote: $TESTTMP/repos/one: an abandoned transaction cannot be rolled back: attempted to truncate 00changelog.i to 9999 bytes, but it was already * bytes (glob)
  * moved/nowhere/there (glob)
