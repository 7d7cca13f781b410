  $ cat >> $HGRCPATH << EOF
  > [extensions]
  > *:required = yes
  > pushlog =
  > [devel]
  > default-date = 1500000000 0
  > EOF

A push is recorded in its own transaction, and the pusher reads so, even with --quiet.

  $ hg init server
  $ hg -q clone server client
  $ cd client
  $ echo 1 > f; hg -q commit -A -m one
  $ echo 2 > f; hg -q commit -m two
  $ USER=alice hg push
  pushing to $TESTTMP/server
  searching for changes
  adding changesets
  adding manifests
  adding file changes
  recorded push in pushlog
  added 2 changesets with 2 changes to 1 files
  $ echo 3 > f; hg -q commit -m three
  $ USER=bob hg push -q
  recorded push in pushlog
  $ hg -R ../server log -T '{rev} {pushid} {pushuser} {pushdate|hgdate} {pushbasenode|short}-{pushheadnode|short}\n'
  2 2 bob * 0 2e7adb86694b-2e7adb86694b (glob)
  1 1 alice * 0 19a196b0041d-45befe93dc2b (glob)
  0 1 alice * 0 19a196b0041d-45befe93dc2b (glob)
  $ hg -R ../server verifypushlog
  pushlog contains all 3 changesets across 2 pushes

The schema is the one that tools read, and the file is group-writable.

  $ cat > ../sql.py << EOF
  > import sqlite3, sys
  > with sqlite3.connect(sys.argv[1], isolation_level=None) as database:
  >     for row in database.execute(sys.argv[2]): print(*row, sep='|')
  > EOF
  $ python3 ../sql.py ../server/.hg/pushlog2.db 'select * from pushlog'
  1|alice|* (glob)
  2|bob|* (glob)
  $ python3 ../sql.py ../server/.hg/pushlog2.db 'select * from changesets'
  1|0|19a196b0041d3f0c544beb343e3ba4f5def3e9d4
  1|1|45befe93dc2b610d557da023349812994a37cdd4
  2|2|2e7adb86694b82c54917d9d126ffbe82d1f5d53c
  $ python3 ../sql.py ../server/.hg/pushlog2.db "select sql from sqlite_master where type != 'trigger' and name not like 'pushlog\_%' escape '\\'"
  CREATE TABLE changesets (pushid INTEGER, rev INTEGER, node text)
  CREATE TABLE pushlog (id INTEGER PRIMARY KEY AUTOINCREMENT, user TEXT, date INTEGER)
  CREATE TABLE sqlite_sequence(name,seq)
  CREATE UNIQUE INDEX changeset_node ON changesets (node)
  CREATE UNIQUE INDEX changeset_rev ON changesets (rev)
  CREATE INDEX changeset_pushid ON changesets (pushid)
  $ python3 ../sql.py ../server/.hg/pushlog2.db "select name from sqlite_master where name like 'pushlog\_%' escape '\\' and type in ('table', 'index') order by 1"
  pushlog_date
  pushlog_edit
  pushlog_state
  pushlog_user
  $ ls -l ../server/.hg/pushlog2.db | cut -c1-10
  -rw-rw-r--

The pusher must be known. REMOTE_USER is more than USER, prefixes tell them apart, and a landing account pushes for another user.

  $ echo 4 > f; hg -q commit -m four
  $ USER= hg push
  pushing to $TESTTMP/server
  searching for changes
  adding changesets
  adding manifests
  adding file changes
  authenticated user not found; refusing to write into pushlog
  (the server's environment has neither REMOTE_USER nor USER)
  transaction abort!
  rollback completed
  abort: pretxnchangegroup.pushlog hook failed
  [40]
  $ hg -R ../server tip -T '{rev}\n'
  2
  $ REMOTE_USER=carol USER=web hg push -q
  recorded push in pushlog
  $ echo 5 > f; hg -q commit -m five
  $ USER=lander AUTOLAND_REQUEST_USER=dave hg push -q --config pushlog.landingworkeruser=lander
  autoland or landing worker push detected
  recorded push in pushlog
  $ echo 6 > f; hg -q commit -m six
  $ USER=lander hg push -q --config pushlog.landingusers=other,lander --config pushlog.userprefix=ssh
  autoland or landing worker push detected
  recorded push in pushlog
  $ echo 7 > f; hg -q commit -m seven
  $ USER=lander AUTOLAND_REQUEST_USER=dave REMOTE_USER=carol hg push -q --config pushlog.autolanduser=lander --config pushlog.remoteuserprefix=ldap
  recorded push in pushlog
  $ hg -R ../server log -T '{pushid} {pushuser}\n'
  6 ldap:carol
  5 ssh:lander
  4 dave
  3 carol
  2 bob
  1 alice
  1 alice

What does not come from a push is not recorded.

  $ echo 8 > f; hg -q commit -m eight
  $ hg -R ../server pull -v . 2>&1 | grep pushlog
  calling hook pretxnchangegroup.pushlog: pushlog.recording.record
  (not updating pushlog since changesets come from pull)
  $ hg -R ../server pull -v ../client | grep pushlog
  [1]
  $ hg -R ../server log -r tip -T '{rev}:{pushid}:{pushuser}:{pushdate|hgdate}\n'
  7:::0 0
  $ hg -R ../server log -r tip -T json\(pushid,pushuser,pushdate\)
  [
   {"pushdate": null, "pushid": null, "pushuser": null}
  ]
  $ hg -R ../server verifypushlog
  changeset does not exist in pushlog: 38425a1c710f97e12495f88887dcd3bab42e45fa
  pushlog has errors
  [1]
  $ cd ..

A refused push leaves nothing, in every refusal.

  $ cat >> server/.hg/hgrc << EOF
  > [hooks]
  > pretxnclose.refuse = false
  > EOF
  $ cd client
  $ echo 9 > f; hg -q commit -m nine
  $ cp ../server/.hg/store/pushlog.log before
  $ USER=alice hg push
  pushing to $TESTTMP/server
  searching for changes
  adding changesets
  adding manifests
  adding file changes
  recorded push in pushlog
  transaction abort!
  rolling back pushlog
  rollback completed
  abort: pretxnclose.refuse hook exited with status 1
  [40]
  $ cmp before ../server/.hg/store/pushlog.log
  $ python3 ../sql.py ../server/.hg/pushlog2.db 'select max(id) from pushlog'
  6
  $ rm ../server/.hg/hgrc

A database that is locked or cannot be written refuses the push, with SQLite's reason.

  $ cat > ../locked.py << EOF
  > import sqlite3, subprocess, sys
  > database = sqlite3.connect(sys.argv[1], isolation_level=None)
  > database.execute('BEGIN EXCLUSIVE')
  > sys.exit(subprocess.run(sys.argv[2:]).returncode)
  > EOF
  $ USER=alice python3 ../locked.py ../server/.hg/pushlog2.db hg push --config pushlog.timeoutrw=50
  pushing to $TESTTMP/server
  searching for changes
  adding changesets
  adding manifests
  adding file changes
  error recording into pushlog (database is locked); please retry your push
  transaction abort!
  rolling back pushlog
  rollback completed
  abort: pretxnchangegroup.pushlog hook failed
  [40]
  $ USER=alice hg push -q
  recorded push in pushlog
  $ hg -R ../server tip -T '{pushid} {pushuser}\n'
  7 alice

A failure of SQLite when the transaction is about to close refuses the push too.

  $ echo 9 > g; hg -q commit -A -m refused
  $ python3 ../sql.py ../server/.hg/pushlog2.db "create trigger full before delete on pushlog_state begin select raise(abort, 'no room'); end"
  $ USER=alice hg push 2>&1 | tail -4
  transaction abort!
  rolling back pushlog
  rollback completed
  abort: cannot use pushlog2.db: no room
  $ python3 ../sql.py ../server/.hg/pushlog2.db "drop trigger full"
  $ hg --config extensions.strip= strip -q --no-backup .

Ids are never used twice. A row that an operator put in the way of a push is moved aside, and stays an error to verify.

  $ python3 ../sql.py ../server/.hg/pushlog2.db 'delete from pushlog where id = 7'
  $ python3 ../sql.py ../server/.hg/pushlog2.db 'delete from changesets where pushid = 7'
  $ echo 10 > f; hg -q commit -m ten
  $ USER=alice hg push -q
  recorded push in pushlog
  $ hg -R ../server tip -T '{pushid} {pushuser}\n'
  8 alice
  $ echo 11 > f; hg -q commit -m eleven
  $ python3 ../sql.py ../server/.hg/pushlog2.db "insert into changesets values (1, 10, 'ffffffffffffffffffffffffffffffffffffffff')"
  $ USER=alice hg push
  pushing to $TESTTMP/server
  searching for changes
  adding changesets
  adding manifests
  adding file changes
  recorded push in pushlog
  added 1 changesets with 1 changes to 1 files
  $ hg -R ../server verifypushlog
  changeset in pushlog entry #1 does not exist: ffffffffffffffffffffffffffffffffffffffff
  changeset does not exist in pushlog: 38425a1c710f97e12495f88887dcd3bab42e45fa
  changeset does not exist in pushlog: 44a91ec021f7decdeb4b6bf053e6c187e3238af1
  pushlog has errors
  [1]

A repository that was there before its pushlog: one line says so, and how to check what came since.

  $ cd ..
  $ hg init old --config extensions.pushlog=!
  $ cd old
  $ for i in 0 1 2; do echo $i > f; hg -q commit -A -m c$i; done
  $ cd ..
  $ hg -q clone old new
  $ hg -R old verifypushlog
  changesets from before the pushlog, in no push: revisions 0 to 2 (hg pull brings the pushes of a server that has them; here they are recorded from the next one on)
  pushlog has errors
  [1]
  $ for i in 3 4; do echo $i > new/f; hg -R new -q commit -m c$i; hg -R new push -q; done
  recorded push in pushlog
  recorded push in pushlog
  $ hg -R old verifypushlog
  changesets from before the pushlog, in no push: revisions 0 to 2 (to check the others: hg verifypushlog --since 3)
  pushlog has errors
  [1]
  $ hg -R old verifypushlog --since 3
  pushlog contains all 2 changesets across 2 pushes
  $ hg -R old pull -q new -r 3
  $ hg -R new -q phase -fd 4; hg -R new -q strip --no-backup 4 --config extensions.strip=
  $ echo 5 > new/f; hg -R new -q commit -m c5; hg -R old pull -q new
  $ hg -R old verifypushlog --since 3
  changeset does not exist in pushlog: * (glob)
  pushlog has errors
  [1]

What is no changeset is none to begin with, and the null changeset is before all others.

  $ hg -R old verifypushlog --since 'wdir()'
  abort: --since: expected a changeset, got the working directory
  [10]
  $ hg -R old verifypushlog --since null
  changesets from before the pushlog, in no push: revisions 0 to 2 (to check the others: hg verifypushlog --since 3)
  changeset does not exist in pushlog: * (glob)
  pushlog has errors
  [1]
