  $ cat >> $HGRCPATH << EOF
  > [extensions]
  > *:required = yes
  > pushlog =
  > [pushlog]
  > retrydelayms = 1
  > [ui]
  > ssh = python3 "$RUNTESTDIR/dummyssh"
  > [devel]
  > default-date = 1500000000 0
  > [web]
  > allow-push = *
  > push_ssl = no
  > EOF
  $ hg init server
  $ hg -q clone server client
  $ cd client
  $ for i in 0 1 2; do echo $i > f; hg -q commit -A -m c$i; done
  $ USER=alice hg push -q -r 1
  recorded push in pushlog
  $ USER='Bob Builder' hg push -q
  recorded push in pushlog
  $ cd ..
  $ hg serve -R server -d -p $HGPORT --pid-file hg.pid -A access.log -E errors.log
  $ cat hg.pid >> $DAEMON_PIDS

A clone and a pull bring the pushlog along, in their own transaction.

  $ hg clone -U http://localhost:$HGPORT/ cloned
  requesting all changes
  adding changesets
  adding manifests
  adding file changes
  added 2 pushes
  added 3 changesets with 3 changes to 1 files
  new changesets bd3dfc8671e6:3893386f2e9f
  $ hg -R cloned log -T '{rev} {pushid} {pushuser} {pushdate|hgdate}\n'
  2 2 Bob Builder * 0 (glob)
  1 1 alice * 0 (glob)
  0 1 alice * 0 (glob)
  $ hg -R cloned verifypushlog
  pushlog contains all 3 changesets across 2 pushes
  $ cmp server/.hg/store/pushlog.log cloned/.hg/store/pushlog.log
  $ hg clone -U --stream http://localhost:$HGPORT/ streamed
  streaming all changes
  * files to transfer, * (glob)
  (stream-cloned|transferred) .* (re)
  added 2 pushes
  $ hg -R streamed verifypushlog
  pushlog contains all 3 changesets across 2 pushes
  $ hg clone -U ssh://user@dummy/server overssh
  requesting all changes
  adding changesets
  adding manifests
  adding file changes
  added 2 pushes
  added 3 changesets with 3 changes to 1 files
  new changesets bd3dfc8671e6:3893386f2e9f
  $ hg -R overssh verifypushlog
  pushlog contains all 3 changesets across 2 pushes
  $ hg clone -U -r 0 http://localhost:$HGPORT/ partial
  adding changesets
  adding manifests
  adding file changes
  received pushlog entry for unknown changeset ad839fe5093886f3832ff49257ff8e5496b3b202; ignoring
  added 0 pushes
  added 1 changesets with 1 changes to 1 files
  new changesets bd3dfc8671e6
  $ hg -R partial verifypushlog
  changeset does not exist in pushlog: bd3dfc8671e6241ee9e245230e6a184b940759e8
  pushlog has errors
  [1]

A pull that finds no changesets still brings pushes that are missing.

  $ rm cloned/.hg/pushlog2.db cloned/.hg/store/pushlog.log
  $ hg -R cloned pull
  pulling from http://localhost:$HGPORT/
  searching for changes
  no changes found
  added 2 pushes
  $ hg -R cloned verifypushlog
  pushlog contains all 3 changesets across 2 pushes
  $ hg -R cloned pull
  pulling from http://localhost:$HGPORT/
  searching for changes
  no changes found
  added 0 pushes

A push over HTTP and SSH tells the pusher.

  $ cd client
  $ echo 3 > f; hg -q commit -m c3
  $ hg push http://localhost:$HGPORT/
  pushing to http://localhost:$HGPORT/
  searching for changes
  remote: adding changesets
  remote: adding manifests
  remote: adding file changes
  remote: recorded push in pushlog
  remote: added 1 changesets with 1 changes to 1 files
  $ echo 4 > f; hg -q commit -m c4
  $ USER=carol hg push ssh://user@dummy/server 2>&1 | grep remote
  remote: adding changesets
  remote: adding manifests
  remote: adding file changes
  remote: recorded push in pushlog
  remote: added 1 changesets with 1 changes to 1 files
  $ cd ..
  $ hg -R server log -T '{pushid} {pushuser}\n' -r 3:
  3 tester
  4 carol

The rows on the wire.

  $ get() { python3 -c "import urllib.request, sys; sys.stdout.write(urllib.request.urlopen(sys.argv[1]).read().decode())" "$1"; }
  $ get "http://localhost:$HGPORT/?cmd=pushlog&firstpush=2"; echo
  1
  2 Bob Builder * 3893386f2e9f844483631301c575f9dfecbff06b (glob)
  3 tester * 74ebaba4ddc305beea3f18420c14b774ae6e6fb5 (glob)
  4 carol * ff1b1aeffa6afa239ddd9300ffbab8b3c972bf38 (glob)
  $ get "http://localhost:$HGPORT/?cmd=pushlog-stream&firstpush=3"
  3 tester * 74ebaba4ddc305beea3f18420c14b774ae6e6fb5 (glob)
  4 carol * ff1b1aeffa6afa239ddd9300ffbab8b3c972bf38 (glob)
  ok
  $ get "http://localhost:$HGPORT/?cmd=pushlog-stream&firstpush=x"
  error invalid literal for int() with base 10: b'x'
  $ get "http://localhost:$HGPORT/?cmd=pushlog&firstpush=x"; echo
  0
  invalid literal for int() with base 10: b'x'

A server that breaks off is asked again, three times; then the pull is undone.

  $ cat > broken.py << EOF
  > from pushlog import wire
  > def reposetup(ui, repo):
  >     if wire.stream_rows.__name__ != 'broken':
  >         whole = wire.stream_rows
  >         def broken(repo, firstpush):
  >             yield from list(whole(repo, firstpush))[:-1]
  >             how = repo.ui.config(b'test', b'trailer')
  >             if how:
  >                 yield how + b'\n'
  >         wire.stream_rows = broken
  > EOF
  $ hg serve -R server -d -p $HGPORT1 --pid-file hg1.pid -E errors.log --config extensions.broken=$TESTTMP/broken.py
  $ cat hg1.pid >> $DAEMON_PIDS
  $ hg -R partial pull http://localhost:$HGPORT1/
  pulling from http://localhost:$HGPORT1/
  searching for changes
  adding changesets
  adding manifests
  adding file changes
  remote error fetching pushlog on attempt 1: stream ended without trailer
  remote error fetching pushlog on attempt 2: stream ended without trailer
  remote error fetching pushlog on attempt 3: stream ended without trailer
  transaction abort!
  rollback completed
  abort: remote error fetching pushlog after 3 attempts
  [255]
  $ hg -R partial log -T '{rev}\n'
  0
  $ hg serve -R server -d -p $HGPORT2 --pid-file hg2.pid -E errors.log --config extensions.broken=$TESTTMP/broken.py --config test.trailer='error out of luck'
  $ cat hg2.pid >> $DAEMON_PIDS
  $ hg -R partial pull http://localhost:$HGPORT2/ 2>&1 | tail -4
  remote error fetching pushlog on attempt 3: out of luck
  transaction abort!
  rollback completed
  abort: remote error fetching pushlog after 3 attempts
  $ hg -R partial pull -q
  $ hg -R partial verifypushlog
  pushlog contains all 5 changesets across 4 pushes

A row of the server that names a changeset which is not there costs a client that changeset, and no other row.

  $ cat > sql.py << EOF
  > import sqlite3, sys
  > with sqlite3.connect(sys.argv[1], isolation_level=None) as database: database.execute(sys.argv[2])
  > EOF
  $ hg -q clone -U ssh://user@dummy/server sound
  $ cp -r server damaged
  $ python3 sql.py damaged/.hg/pushlog2.db "update changesets set node = '`printf %040d 7`' where pushid = 2"
  $ hg clone -U ssh://user@dummy/damaged overssh2
  requesting all changes
  adding changesets
  adding manifests
  adding file changes
  pushes without the changesets that are not given by the server: 2
  added 4 pushes
  added 5 changesets with 5 changes to 1 files
  new changesets bd3dfc8671e6:ff1b1aeffa6a
  $ hg -R overssh2 log -T '{rev} {pushid} {pushuser}\n'
  4 4 carol
  3 3 tester
  2  
  1 1 alice
  0 1 alice

A client that has no row for a changeset it gets back asks for it again.

  $ hg -R sound strip -q --no-backup -r 2 --config extensions.strip=
  $ hg -R sound pull -q ssh://user@dummy/server
  $ hg -R sound log -T '{rev} {pushid} {pushuser}\n'
  4 4 carol
  3 3 tester
  2 2 Bob Builder
  1 1 alice
  0 1 alice
  $ hg -R sound verifypushlog
  pushlog contains all 5 changesets across 4 pushes

A client without the extension.

  $ hg clone -U -q http://localhost:$HGPORT/ without --config extensions.pushlog=!
  $ ls without/.hg | grep pushlog
  [1]
  $ cat errors.log
