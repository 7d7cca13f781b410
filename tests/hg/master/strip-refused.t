A strip that was refused at its start is not carried out later by another process.

  $ . "$TESTDIR/master.sh"
  $ hgm init repos/one
  (recorded repository creation in replication log in *s) (glob)
  $ hg clone -q ssh://user@dummy/$TESTTMP/repos/one clone
  $ cd clone
  $ hg debugdrawdag <<'E'
  > B
  > |
  > A
  > E
  $ hg push -q -r B
  $ cd ..
  $ echo "in the way" > repos/one/.hg/strip-backup
  $ hgm -R repos/one strip -q 'desc(B)'
  abort: * (glob)
  [255]
  $ rm repos/one/.hg/strip-backup
  $ hgm -R repos/one bookmark -r 0 wip
  recorded push in replication log in *s (glob)
  $ hgm -R repos/one log -T '{rev} {desc}\n'
  1 B
  0 A

Nor is one that was refused when the changesets to keep were set aside in a bundle, which stays, as Mercurial says.

  $ hg -R clone update -q 'desc(A)'
  $ echo c > clone/c; hg -R clone commit -q -A -m C; hg -R clone push -q -f -r tip
  $ hgm -R repos/one strip -q --no-backup 'desc(B)' --config hooks.pretxnopen.no='test "$HG_TXNNAME" != strip'
  strip failed, unrecovered changes stored in '$TESTTMP/repos/one/.hg/strip-backup/*-temp.hg' (glob)
  (fix the problem, then recover the changesets with "hg unbundle '$TESTTMP/repos/one/.hg/strip-backup/*-temp.hg'") (glob)
  abort: pretxnopen.no hook exited with status 1
  [255]
  $ hgm -R repos/one bookmark -r 0 wip-too
  recorded push in replication log in *s (glob)
  $ hgm -R repos/one log -T '{rev} {desc}\n'
  2 C
  1 B
  0 A
  $ ls repos/one/.hg/strip-backup
  *-temp.hg (glob)
  $ rm -r repos/one/.hg/strip-backup
  $ hgm -R repos/one strip -q --no-backup 'desc(C)'

In a share it is refused too: after a kill, the changesets that Mercurial takes away for a moment would be there, and lost here.

  $ hgm --config extensions.share= share -q -U repos/one shared
  $ hgm -R shared strip -q 'desc(B)'
  abort: changesets of a replicated repository cannot be stripped in a share
  (strip them in $TESTTMP/repos/one)
  [255]
  $ hgm -R repos/one log -T '{rev} {desc}\n'
  1 B
  0 A

A marker whose date would change on disk would make master and mirrors differ; it is refused.

  $ hgm -R repos/one debugobsolete -d '0 1' aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
  transaction abort!
  rollback completed
  abort: an obsolescence marker has a date that cannot be stored: 0 1
  (its time zone must be whole minutes)
  [255]
  $ hgm -R repos/one debugobsolete -d '0 60' aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
  1 new obsolescence markers
  recorded push in replication log in *s (glob)

Changes that no event can hold are refused: hiding changesets in a phase that is not replicated, and deleting markers.

  $ hgm -R repos/one debugobsolete --delete 0
  abort: markers of a replicated repository cannot be deleted
  (mirrors would keep them)
  [255]
  $ hgm init -q repos/archive --config format.exp-archived-phase=yes
  $ hg -R clone push -q -r 0 ssh://user@dummy/$TESTTMP/repos/archive
  $ hgm -R repos/archive phase --quiet --force --draft 0
  $ hgm -R repos/archive strip --soft --no-backup 0
  transaction abort!
  rollback completed
  abort: changesets of a replicated repository cannot become archived
  (strip them, or mark them as obsolete)
  [255]
  $ hgm -R repos/archive log -T '{rev} {phase}\n'
  0 draft
