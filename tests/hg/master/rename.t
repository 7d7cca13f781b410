A rename is announced only if it can be carried out.

  $ . "$TESTDIR/master.sh"
  $ hgm init -q repos/one
  $ hgm init -q repos/two
  $ hgm -R repos/one replicaterename --yes repos/two
  abort: $TESTTMP/repos/two exists
  [255]
  $ hgm -R repos/one replicaterename --yes repos/one/inside
  abort: $TESTTMP/repos/one/inside is inside the repository $TESTTMP/repos/one
  [255]
  $ hgm -R repos/one replicaterename --yes repos/two/inside
  abort: $TESTTMP/repos/two/inside is inside the repository $TESTTMP/repos/two
  [255]

With a repository inside it, which would be moved without an event:

  $ hgm init -q repos/two/inner
  $ hgm -R repos/two replicaterename --yes repos/three
  abort: cannot move $TESTTMP/repos/two: the repository $TESTTMP/repos/two/inner would go with it
  [255]
  $ hgm -R repos/two replicatedelete --yes
  abort: cannot move $TESTTMP/repos/two: the repository $TESTTMP/repos/two/inner would go with it
  [255]
  $ rm -r repos/two/inner
  $ hg init "repos/two/`printf 'caf\351'`"
  $ hgm -R repos/two replicatedelete --yes
  abort: cannot move $TESTTMP/repos/two: the repository $TESTTMP/repos/two/caf\xe9 would go with it (esc)
  [255]
  $ rm -r repos/two/caf*

To another file system, which cannot be done in one step: refused, and nothing changes.


  $ echo 'a file' > repos/file
  $ hgm -R repos/one replicaterename --yes repos/file/deep
  abort: cannot move $TESTTMP/repos/one to $TESTTMP/repos/file/deep: File exists
  [255]
  $ mkdir $TESTTMP/repos/shm
  $ for disk in /dev/shm /var/tmp; do test "$(stat -c %d $disk)" = "$(stat -c %d .)" || break; done
  $ ln -s "$(mktemp -d -p $disk)" other
  $ hgm -R repos/one replicaterename --yes other/one --config "vcsreplicator-roots.$(realpath other)=other"
  abort: cannot move $TESTTMP/repos/one to */tmp.*/one: Invalid cross-device link (glob)
  [255]
  $ ls other/
  $ rmdir $(realpath other)

  $ ls -A repos/.vcsreplicator repos
  repos:
  .vcsreplicator
  file
  one
  shm
  two
  
  repos/.vcsreplicator:
  deleted
  generations
  $ hgm -R repos/one bookmark -r null x
  recorded push in replication log in *s (glob)
  $ events one
  one 1 created origin=init after=0
  one 2 changed x=000000000000 after=0

Between two roots, generations are counted where the repository goes.

  $ mkdir more
  $ cat >> master.hgrc <<E
  > $TESTTMP/more = more
  > E
  $ hgm init -q more/one
  $ hgm -R more/one replicatedelete --yes
  wrote delete message into replication log
  repo deleted from local host
  $ hgm -R repos/one replicaterename --yes more/one
  wrote rename message into replication log: more/one
  $ events more/one
  more/one 1 created origin=init after=0
  more/one 2 deleted after=0
  more/one 3 renamed generation=2 from=one after=0
  $ ls more/.vcsreplicator/generations | wc -l | tr -d ' '
  1

A repository that is a root itself cannot be moved aside.

  $ hgm init -q alone --config "vcsreplicator-roots.$TESTTMP/alone=alone"
  $ hgm -R alone --config "vcsreplicator-roots.$TESTTMP/alone=alone" replicatedelete --yes
  abort: cannot move $TESTTMP/alone: it is a root of [vcsreplicator-roots]
  [255]
