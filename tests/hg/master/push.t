Each change of a repository becomes one event, in the same transaction.

  $ . "$TESTDIR/master.sh"
  $ hgm init repos/one
  (recorded repository creation in replication log in *s) (glob)
  $ hg clone -q ssh://user@dummy/$TESTTMP/repos/one clone
  $ cd clone

A push of changesets.

  $ echo a > a
  $ hg commit -qAm a
  $ hg push
  pushing to ssh://user@dummy/$TESTTMP/repos/one
  searching for changes
  remote: adding changesets
  remote: adding manifests
  remote: adding file changes
  remote: recorded push in pushlog
  remote: added 1 changesets with 1 changes to 1 files
  remote: recorded push in replication log in *s (glob)

A bookmark alone, then moved together with a changeset.

  $ hg bookmark here
  $ hg push -B here
  pushing to ssh://user@dummy/$TESTTMP/repos/one
  searching for changes
  no changes found
  remote: recorded push in replication log in *s (glob)
  exporting bookmark here
  [1]
  $ echo b > b
  $ hg commit -qAm b
  $ hg push -q
  $ hgm -R ../repos/one log -T '{rev} {pushid} {pushuser} {phase} {bookmarks}\n'
  1 2 tester public here
  0 1 tester public 

A change of phases alone: the operator takes a changeset back to draft, a push publishes it again.

  $ hgm -R ../repos/one phase --force --draft tip
  recorded push in replication log in *s (glob)
  $ hg push
  pushing to ssh://user@dummy/$TESTTMP/repos/one
  searching for changes
  no changes found
  remote: recorded push in replication log in *s (glob)
  [1]

Markers: with a changeset, then alone.

  $ hg phase --force --draft tip
  $ hgm -R ../repos/one phase --quiet --force --draft tip
  $ echo bb > b
  $ hg commit -q --amend -m bb
  $ hg push -f -q --config phases.publish=no
  $ hg debugobsolete 1111111111111111111111111111111111111111 `hg log -r . -T "{node}"`
  1 new obsolescence markers
  $ hg push
  pushing to ssh://user@dummy/$TESTTMP/repos/one
  searching for changes
  no changes found
  remote: 1 new obsolescence markers
  remote: recorded push in replication log in *s (glob)
  [1]

Clients of the old protocol: each bookmark is a transaction of its own.

  $ hg bookmark old
  $ hg push -B old --config devel.legacy.exchange=bundle1
  pushing to ssh://user@dummy/$TESTTMP/repos/one
  searching for changes
  no changes found
  remote: recorded push in replication log in *s (glob)
  exporting bookmark old
  [1]

Markers by the old protocol.

  $ hg debugobsolete 3333333333333333333333333333333333333333 `hg log -r . -T "{node}"`
  1 new obsolescence markers
  $ hg push --config devel.legacy.exchange=bundle1
  pushing to ssh://user@dummy/$TESTTMP/repos/one
  searching for changes
  no changes found
  remote: 1 new obsolescence markers
  remote: recorded push in replication log in *s (glob)
  [1]

A push that changes nothing writes no event, nor does reading.

  $ hg push -q
  [1]
  $ hgm -R ../repos/one log -q -r tip
  2:647c704fa659
  $ events
  one 1 created origin=init after=0
  one 2 changed +1 heads+1 push=1 by tester (inline) after=1
  one 3 changed here=cb9a9f314b8b after=1
  one 4 changed +1 heads+1 here=d2ae7f538514 push=2 by tester (inline) after=2
  one 5 changed phase1:1 after=2
  one 6 changed phase0:1 after=2
  one 7 changed phase1:1 after=2
  one 8 changed +1 heads+1 here=647c704fa659 markers:1 push=3 by tester (inline) after=3
  one 9 changed markers:1 (inline) after=3
  one 10 changed old=647c704fa659 after=3
  one 11 changed markers:1 (inline) after=3
