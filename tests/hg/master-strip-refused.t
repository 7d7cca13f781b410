A strip that could not begin is not carried out later by somebody else.

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

A marker whose date does not survive the disk would part master and mirrors; it is refused.

  $ hgm -R repos/one debugobsolete -d '0 1' aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
  transaction abort!
  rollback completed
  abort: an obsolescence marker has a date that cannot be stored: 0 1
  (its time zone must be whole minutes)
  [255]
  $ hgm -R repos/one debugobsolete -d '0 60' aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
  1 new obsolescence markers
  recorded push in replication log in *s (glob)
