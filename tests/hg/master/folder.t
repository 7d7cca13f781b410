A folder in place of a file of the outbox: a change is refused in one line with its path, over HTTP too.

  $ . "$TESTDIR/master.sh"
  $ hgm init repos/one
  (recorded repository creation in replication log in *s) (glob)
  $ hg clone -q ssh://user@dummy/$TESTTMP/repos/one clone; cd clone
  $ echo a > a; hg commit -qAm a; cd ../repos/one/.hg/store
  $ printf '[web]\npush_ssl = no\nallow-push = *\n' >> $TESTTMP/master.hgrc
  $ hgm -R $TESTTMP/repos/one serve -d -p 0 --print-url --pid-file $TESTTMP/pid -E $TESTTMP/errors > $TESTTMP/url
  $ cat $TESTTMP/pid >> $DAEMON_PIDS
  $ for file in outbox.0001.log outbox.fork; do
  >   echo "- $file"; mv $file ../$file 2>/dev/null; mkdir $file
  >   hg -R $TESTTMP/clone push $(cat $TESTTMP/url) 2>&1 | grep -v '^pushing\|^searching'
  >   hgm -R $TESTTMP/repos/one replicateadopt --yes
  >   rmdir $file; mv ../$file $file 2>/dev/null || true
  > done
  - outbox.0001.log
  remote: this repository refuses changes: [Errno 22] Not a file: '$TESTTMP/repos/one/.hg/store/outbox.0001.log'
  abort: push failed on remote
  abort: this repository refuses changes: [Errno 22] Not a file: '$TESTTMP/repos/one/.hg/store/outbox.0001.log'
  - outbox.fork
  remote: this repository refuses changes: [Errno 22] Not a file: '$TESTTMP/repos/one/.hg/store/outbox.fork'
  abort: push failed on remote
  abort: Not a file: '$TESTTMP/repos/one/.hg/store/outbox.fork'
