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
