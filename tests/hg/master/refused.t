A refused change leaves nothing behind, and the message says why.

  $ . "$TESTDIR/master.sh"
  $ hgm init repos/one
  (recorded repository creation in replication log in *s) (glob)
  $ hg clone -q ssh://user@dummy/$TESTTMP/repos/one clone
  $ cd clone
  $ echo a > a
  $ hg commit -qAm a

A hook refuses the push in the last moment before the commit: no changeset, no push, no event.

  $ cat >> ../master.hgrc <<E
  > [hooks]
  > pretxnclose.no = false
  > E
  $ hg push
  pushing to ssh://user@dummy/$TESTTMP/repos/one
  searching for changes
  remote: adding changesets
  remote: adding manifests
  remote: adding file changes
  remote: recorded push in pushlog
  remote: transaction abort!
  remote: rolling back pushlog
  remote: rollback completed
  remote: pretxnclose.no hook exited with status 1
  abort: push failed on remote
  [100]
  $ sed -i '/^\[hooks\]/,$d' ../master.hgrc
  $ hgm -R ../repos/one log
  $ hgm -R ../repos/one verifypushlog
  pushlog contains all 0 changesets across 0 pushes
  $ events
  one 1 created origin=init after=0
  $ hg push -q

A full disk is named to the pusher, where Mercurial alone would answer with an internal error.

  $ cat > ../full.py <<E
  > import errno
  > def hook(**_arguments):
  >     raise OSError(errno.ENOSPC, "No space left on device")
  > E
  $ printf "[hooks]\npretxnclose.full = python:$TESTTMP/full.py:hook\n" >> ../master.hgrc
  $ echo b > b
  $ hg commit -qAm b
  $ hg push
  pushing to ssh://user@dummy/$TESTTMP/repos/one
  searching for changes
  remote: adding changesets
  remote: adding manifests
  remote: adding file changes
  remote: recorded push in pushlog
  remote: error: pretxnclose.full hook raised an exception: [Errno 28] No space left on device
  remote: transaction abort!
  remote: rolling back pushlog
  remote: rollback completed
  remote: no room on the disk of the server; the push is rolled back
  abort: push failed on remote
  [100]
  $ sed -i '/^\[hooks\]/,$d' ../master.hgrc
  $ hg --config extensions.strip= strip -q --no-backup .

On the master itself commits and rollbacks are refused.

  $ cd ../repos/one
  $ hgm update -q
  $ echo b > b
  $ hgm add -q b
  $ hgm commit -m b
  cannot commit to replicating repositories; push instead
  abort: precommit.vcsreplicator hook failed
  [255]
  $ hgm rollback
  abort: rollback is disabled because it is unsafe
  (see `hg help -v rollback` for information)
  [255]
  $ hgm rollback --config ui.rollback=yes
  abort: rollback is disabled because it is unsafe
  (see `hg help -v rollback` for information)
  [255]
  $ cd ..

A repository outside the roots refuses pushes, which would not be replicated, with changesets or without.

  $ hgm init ../outside
  $ hg -R ../clone push ssh://user@dummy/$TESTTMP/outside
  pushing to ssh://user@dummy/$TESTTMP/outside
  searching for changes
  remote: error: pretxnopen.vcsreplicator hook failed: repository path not configured for replication
  remote: repository path not configured for replication
  remote: (add its folder to [vcsreplicator-roots])
  abort: push failed on remote
  [100]
  $ cd ../clone
  $ hg phase -d -f .
  $ printf '[phases]\npublish = no\n' >> ../outside/.hg/hgrc
  $ hgm push -q ../outside
  recorded push in pushlog
  $ hg bookmark mark
  $ hg push -q -B mark ssh://user@dummy/$TESTTMP/outside
  remote: repository path not configured for replication
  remote: (add its folder to [vcsreplicator-roots])
  abort: push failed on remote
  [100]
  $ hg phase -p .
  $ hg push -q ssh://user@dummy/$TESTTMP/outside
  remote: repository path not configured for replication
  remote: (add its folder to [vcsreplicator-roots])
  abort: push failed on remote
  [100]
  $ hg phase -d -f .
  $ hg debugobsolete aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa $(hg log -r . -T '{node}')
  1 new obsolescence markers
  $ hg push -q ssh://user@dummy/$TESTTMP/outside
  remote: repository path not configured for replication
  remote: (add its folder to [vcsreplicator-roots])
  abort: push failed on remote
  [100]
  $ hgm -R ../outside log -T '{phase} {bookmarks}\n'
  draft 
  $ hgm -R ../outside debugobsolete
  $ cd ../repos
  $ hgm -R ../outside replicatesync
  abort: repository path not configured for replication
  (add its folder to [vcsreplicator-roots])
  [255]

Formats whose content mirrors would not get.

  $ hgm init trees --config experimental.treemanifest=yes
  abort: this repository would use tree manifests, which is not replicated
  (convert it, or keep it outside [vcsreplicator-roots])
  [255]
  $ hgm init large --config extensions.lfs= --config lfs.usercache=$TESTTMP/lfs
  (recorded repository creation in replication log in *s) (glob)
  $ echo lfs >> one/.hg/requires
  $ hgm -R one --config extensions.lfs= bookmark x
  abort: this repository uses LFS, which is not replicated
  (convert it, or keep it outside [vcsreplicator-roots])
  [255]

A bookmark whose name would break the lines of Mercurial's own files or its clients' lists.

  $ hgm init -q named
  $ for name in 'two
  > lines' 'tab	ulator' 'blank '; do
  >   hg debugpushkey ssh://user@dummy/$TESTTMP/repos/named bookmarks "$name" '' 0000000000000000000000000000000000000000 2>&1 \
  >     | grep -E 'True|False|name'
  > done
  remote: abort: a bookmark cannot have this name: 'two\nlines'
  remote: abort: a bookmark cannot have this name: 'tab\tulator'
  remote: abort: a bookmark cannot have this name: 'blank '
  $ hg debugpushkey ssh://user@dummy/$TESTTMP/repos/named bookmarks 'a b' '' 0000000000000000000000000000000000000000
  remote: recorded push in replication log in *s (glob)
  True
  $ events named
  named 1 created origin=init after=0
  named 2 changed a b=000000000000 after=0

A bookmark at a changeset that is not there: Mercurial would write it, and drop it when it reads the file. A client sends it when it pushes
a bookmark that does not exist.

  $ hg clone -q ssh://user@dummy/$TESTTMP/repos/named ahead
  $ cd ahead
  $ echo 1 > file; hg commit -qAm pushed; hg bookmark moved; hg push -q -B moved
  $ echo 2 > file; hg commit -qm kept
  $ hg push -B missing
  pushing to ssh://user@dummy/$TESTTMP/repos/named
  searching for changes
  bookmark missing does not exist on the local or remote repository!
  no changes found
  remote: transaction abort!
  remote: rollback completed
  remote: a bookmark cannot be at a changeset that is not here: moved, * (glob)
  remote: (push the changeset, too)
  abort: push failed on remote
  [100]
  $ hg push -q
  $ cd ..
  $ hgm -R named bookmarks -T '{bookmark} {desc}\n'
  a b 
  moved kept
  $ rm -r ahead
  $ events named | wc -l
  4

A fork that the relay finds while a push is under way: there is no push.

  $ hgm init -q forked
  $ cat >> forked/.hg/hgrc <<'E'
  > [hooks]
  > pretxnchangegroup.fork = printf 'the log has another event 2 of it' > .hg/store/outbox.fork
  > E
  $ hg -R ../clone push -q ssh://user@dummy/$TESTTMP/repos/forked
  remote: this repository refuses changes: the log has another event 2 of it
  remote: (see 'hg help replicateadopt')
  abort: push failed on remote
  [100]
  $ hgm -R forked log
  $ events forked
  forked 1 created origin=init after=0

Invalid settings.

  $ hgm init x --config vcsreplicator.role=
  config error: config: [vcsreplicator] role: expected master or mirror, got nothing
  [255]
  $ hgm init x --config vcsreplicator.role=slave
  config error: config: [vcsreplicator] role: expected master or mirror, got "slave"
  [255]
  $ hgm init x --config vcsreplicator.durability=some
  config error: config: [vcsreplicator] durability: expected store or outbox, got "some"
  [255]
  $ hgm init x --config vcsreplicator.log=
  config error: config: [vcsreplicator] relay: expected the path of the relay's socket (or [vcsreplicator] log = URL, to push without a relay), got nothing
  [255]
  $ hgm init x --config vcsreplicator.relay=relay.sock
  config error: config: [vcsreplicator] relay: expected an absolute path, got "relay.sock"
  [255]
  $ hgm init x --config vcsreplicator.log=kafak://user:secret@host:9092
  config error: config: [vcsreplicator] log: expected sqlite:///absolute/path or kafka://host:port, got "kafak:"
  [255]
  $ hgm init x --config vcsreplicator.log=kafka://k.example:9092
  config error: config: [vcsreplicator] log: PLAINTEXT to k.example, expected security_protocol=SSL or SASL_SSL; if it is meant, write insecure = plain-text
  [255]
  $ hgm init x --config 'vcsreplicator.log=kafka://k.example:9092?security_protocol=SASL_SSL&sasl_plain_password=s3cret' --config vcsreplicator.insecure=plain-text
  config error: config: [vcsreplicator] log: option sasl_plain_password, expected sasl_plain_password_file=/path; if it is meant, write insecure = password-in-url
  [255]
  $ hgm init meant --config 'vcsreplicator.log=kafka://k.example:9092?sasl_plain_password=s3cret' --config vcsreplicator.insecure=plain-text,password-in-url
  replication log not reachable: the event is kept and will be sent
  $ hgm init x --config 'vcsreplicator.log=kafka://k.example:9092' --config vcsreplicator.insecure=plaintext
  config error: config: [vcsreplicator] insecure: expected plain-text, password-in-url, readable-file, got "plaintext"
  [255]
  $ hgm init x --config vcsreplicator.blobs=/shared/blobs
  config error: config: [vcsreplicator] blobs: expected file:///absolute/folder or s3://bucket/prefix, got "/shared/blobs"
  [255]
  $ hgm init x --config vcsreplicator.acknowledge-timeout=soon
  config error: config: [vcsreplicator] acknowledge-timeout: expected a number of seconds, got "soon"
  [255]
  $ hgm init x --config vcsreplicator.acknowledge=everything
  config error: config: [vcsreplicator] acknowledge: expected log or outbox or mirrors, got "everything"
  [255]
  $ hgm init x --config vcsreplicator.acknowledge=mirrors
  config error: config: [vcsreplicator] relay: expected the path of the relay's socket, which acknowledge = mirrors asks, got nothing
  [255]
  $ hgm init x --config vcsreplicator.record-connection=maybe
  config error: config: [vcsreplicator] record-connection: expected yes or no, got "maybe"
  [255]
  $ hgm init x --config vcsreplicator.acknowlege=log
  config error: config: [vcsreplicator] acknowlege: unknown key, expected one of acknowledge, acknowledge-timeout, role, log, lock, unavailable, snapshot-allow, source, commits, insecure, record-connection, refuse-when-stale, durability, relay-pause, blobs, relay
  [255]
  $ hgm init x --config vcsreplicator-roots./elsewhere=../up
  config error: config: [vcsreplicator-roots] /elsewhere: repository path '../up': the part '..' is not allowed
  [255]
