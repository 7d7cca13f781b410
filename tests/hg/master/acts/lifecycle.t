Delete, rename, strip, censor, and the operator's commands.

  $ . "$TESTDIR/master.sh"
  $ hgm init repos/one
  (recorded repository creation in replication log in *s) (glob)
  $ hg clone -q ssh://user@dummy/$TESTTMP/repos/one clone
  $ cd clone
  $ hg debugdrawdag <<'E'
  > D
  > |
  > B C
  > |/
  > A
  > E
  $ hg push -q -f -r D -r C
  $ cd ..

A strip that has to put a branch back.

  $ hgm -R repos/one log -T '{rev} {desc}\n'
  3 D
  2 C
  1 B
  0 A
  $ hgm -R repos/one strip -q --no-backup 'desc(B)'
  $ hgm -R repos/one log -T '{rev} {desc}\n'
  1 C
  0 A
  $ events
  one 1 created origin=init after=0
  one 2 changed +4 heads+2 push=1 by tester (inline) after=4
  one 3 stripped -2 after=2

hgrc: harmless settings are replicated, on request and with a synchronization.

  $ cat > repos/one/.hg/hgrc <<E
  > [web]
  > description = the first
  > style = /etc/passwd
  > [hooks]
  > incoming = rm
  > E
  $ hgm -R repos/one replicatehgrc
  recorded hgrc in replication log
  $ hgm -R repos/one replicatesync
  wrote synchronization message into replication log
  $ hgm -R repos/one replicatesync --bootstrap -q
  $ events | tail -3
  one 4 hgrc hgrc={'web': {'description': 'the first'}} after=2
  one 5 sync bootstrap=false reason=requested hgrc={'web': {'description': 'the first'}} (master) after=2
  one 6 sync bootstrap=true reason=requested hgrc={'web': {'description': 'the first'}} (master) after=2

A rename keeps the identity; the new path has its own count of generations.

  $ hgm -R repos/one replicaterename repos/two
  move $TESTTMP/repos/one to repos/two here and on all mirrors (yN)?  n
  abort: nothing was done
  (answer yes, or give --yes)
  [255]
  $ hgm -R repos/one replicaterename repos/two --yes
  wrote rename message into replication log: two
  $ ls repos
  two
  $ mv repos/two repos/three
  $ hgm -R repos/three bookmark x -r tip
  abort: this repository was two and is three now
  (if it was moved, run 'hg replicaterename'; if it is a copy, run 'hg replicateadopt')
  [255]
  $ hgm -R repos/three replicaterename
  wrote rename message into replication log: three
  $ hgm -R repos/three bookmark x -r tip
  recorded push in replication log in *s (glob)
  $ events | grep -c .
  9

A copy is not the repository it was copied from.

  $ cp -R repos/three repos/copy
  $ hgm -R repos/copy bookmark y -r tip
  abort: this repository was three and is copy now
  (if it was moved, run 'hg replicaterename'; if it is a copy, run 'hg replicateadopt')
  [255]
  $ hgm -R repos/copy replicateadopt --yes
  (recorded repository creation in replication log in *s) (glob)
  this repository is ????????????????????????????????, incarnation ???????????????????????????????? (glob)
  $ hgm -R repos/copy bookmark y -r tip
  recorded push in replication log in *s (glob)
  $ events copy
  copy 1 created origin=adopted hgrc={'web': {'description': 'the first'}} (master) after=2
  copy 2 changed y=dc0947a82db8 after=2

Deleted, and created again: another repository at the same path.

  $ hgm -R repos/three replicatedelete
  delete $TESTTMP/repos/three here and on all mirrors (yN)?  n
  abort: nothing was done
  (answer yes, or give --yes)
  [255]
  $ hgm -R repos/three replicatedelete --yes
  wrote delete message into replication log
  repo deleted from local host
  $ ls repos
  copy
  $ hgm init repos/three
  (recorded repository creation in replication log in *s) (glob)
  $ events three
  three 8 renamed from=two after=2
  three 9 changed x=dc0947a82db8 after=2
  three 10 deleted after=2
  three 1 created generation=2 origin=init after=0

Censoring.

  $ hg init s
  $ cd s
  $ echo secret > f
  $ hg commit -qAm secret
  $ echo fine > f
  $ hg commit -qm fine
  $ hg push -q ssh://user@dummy/$TESTTMP/repos/three
  $ cd ..
  $ hgm --cwd repos/three --config extensions.censor= censor -r 0 f -q
  $ events three | tail -1
  three 3 censored generation=2 file=f node=b1c12cf98dc8 after=2

Heartbeats.

  $ hgm help sendheartbeat | sed -n 3p
  write a heartbeat into each partition of the replication log
  $ hgm sendheartbeat | tail -2
  sending heartbeat to partition 15
  wrote heartbeat message into 16 partitions
  $ hgm sendheartbeat --config vcsreplicator.log=sqlite:///nowhere/at/all
  abort: error sending heartbeat: sqlite:///nowhere/at/all: expected the folder /nowhere/at to exist
  [255]
  $ hgm sendheartbeat --config vcsreplicator.log= --config vcsreplicator.relay=/x
  config error: config: [vcsreplicator] log: expected the URL of the log, got nothing
  [255]

A lost log is named, and neither a heartbeat nor a push makes an empty one in its place.

  $ mkdir kept; mv log.db* kept
  $ hgm sendheartbeat
  abort: error sending heartbeat: sqlite://$TESTTMP/log.db: the log is missing; if it was there, stop all services and * (glob)
  [255]
  $ hgm -R repos/copy bookmark -r null waits
  replication log not reachable: the push is kept and will be sent
  $ ls | grep log.db
  [1]
  $ mv kept/log.db* .
  $ hgm -R repos/copy bookmark -r null goes
  recorded push in replication log in *s (glob)
  $ events copy | tail -2
  copy 3 changed waits=000000000000 after=2
  copy 4 changed goes=000000000000 after=2

Hashes, under both names.

  $ hgm -R repos/copy repohash
  visible/total revisions: 2/2
  visible/total heads: 1/1
  normal: 2c61861872b020d1eedd7e5bb521e408f4e00921b8cc55d107065c0b5354cdec
  unfiltered: 2c61861872b020d1eedd7e5bb521e408f4e00921b8cc55d107065c0b5354cdec
  phases: c8f58685db27928aa0e50d35ebcfaa63279f17ad2c047b9e61661b50b4a6361d
  heads: bd876d825ba892ce947cf1b84fa5fcdafdb3a84877b08bdcc3198fb2990a008a
  unfiltered heads: bd876d825ba892ce947cf1b84fa5fcdafdb3a84877b08bdcc3198fb2990a008a
  bookmarks: a8ea4d9f09c29268f9860201e3c0283c0aaa1544c4801b734236fe0a099261dc
  pushlog: * (glob)
  $ hgm -R repos/copy mozrepohash | cmp - - && echo the same
  the same
