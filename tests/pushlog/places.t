  $ cat >> $HGRCPATH << EOF
  > [extensions]
  > *:required = yes
  > pushlog =
  > share =
  > [devel]
  > default-date = 1500000000 0
  > EOF
  $ hg init server
  $ hg -q clone server client
  $ cd client
  $ for i in 0 1; do echo $i > f; hg -q commit -A -m c$i; done
  $ USER=alice hg push -q -r 0
  recorded push in pushlog
  $ cd ..

A share has no pushlog of its own: it shows and writes that of its source.

  $ hg share -q -U server shared
  $ USER=bob hg -R client push -q shared
  recorded push in pushlog
  $ hg -R shared log -T '{rev} {pushid} {pushuser}\n'
  1 2 bob
  0 1 alice
  $ hg -R server log -T '{rev} {pushid} {pushuser}\n'
  1 2 bob
  0 1 alice
  $ ls shared/.hg | grep pushlog
  [1]
  $ hg -R shared verifypushlog
  pushlog contains all 2 changesets across 2 pushes

A format upgrade keeps it.

  $ hg -R server debugupgraderepo -q --run --optimize re-delta-all > /dev/null
  $ ls server/.hg/store | grep pushlog
  pushlog.log
  $ hg -R server verifypushlog
  pushlog contains all 2 changesets across 2 pushes

A local clone is a repository of its own, without a pushlog, as is one that a bundle made.

  $ hg clone -q -U server local
  $ find local -name 'pushlog*'
  $ hg -R server bundle -q -a all.hg
  $ hg init unbundled
  $ hg -R unbundled unbundle -q all.hg
  $ find unbundled -name 'pushlog*'

A pull from the server's address brings the pushes afterwards.

  $ hg clone -q -U --pull server later
  $ find later -name 'pushlog*'
  $ hg -R later pull --config "ui.ssh=python3 \"$RUNTESTDIR/dummyssh\"" ssh://user@dummy/server | grep pushes
  added 2 pushes
  $ hg -R later verifypushlog
  pushlog contains all 2 changesets across 2 pushes

Reads make no file, and a file of 0 bytes is as none.

  $ hg -R local log -r tip -T '{pushid}|\n'
  |
  $ hg -R local log -r 'pushid(1) + pushhead() + pushuser(a) + pushdate(today) + pushrev(0)'
  $ find local -name 'pushlog*'
  $ touch local/.hg/pushlog2.db
  $ hg -R local log -r tip -T '{pushid}|\n'
  |
  $ hg -R local verifypushlog
  changesets from before the pushlog, in no push: revisions 0 to 1 (hg pull brings the pushes of a server that has them; here they are recorded from the next one on)
  pushlog has errors
  [1]
  $ USER=carol; cd client; echo 2 > f; hg -q commit -m c2; USER=carol hg push -q ../local; cd ..
  recorded push in pushlog
  $ hg -R local log -T '{rev} {pushid} {pushuser}\n'
  2 1 carol
  1  
  0  

An operator edits SQLite: the next look shows it, and the next push takes it down in the file.

  $ cat > sql.py << EOF
  > import sqlite3, sys
  > with sqlite3.connect(sys.argv[1], isolation_level=None) as database:
  >     for row in database.execute(sys.argv[2]): print(*row, sep='|')
  > EOF
  $ python3 sql.py server/.hg/pushlog2.db "update pushlog set user = 'alice@example.com' where id = 1"
  $ hg -R server log -T '{rev} {pushid} {pushuser}\n'
  1 2 bob
  0 1 alice@example.com
  $ grep -c alice@example.com server/.hg/store/pushlog.log
  0
  [1]
  $ USER=carol hg -R client push -q server
  recorded push in pushlog
  $ grep -c alice@example.com server/.hg/store/pushlog.log
  1
  $ rm server/.hg/pushlog2.db
  $ hg -R server log -T '{rev} {pushid} {pushuser}\n'
  2 3 carol
  1 2 bob
  0 1 alice@example.com

Without the database the file alone tells, and the next push makes the database again.

  $ ls server/.hg | grep pushlog
  [1]
  $ cd client; echo 3 > f; hg -q commit -m c3; USER=dave hg push -q ../server; cd ..
  recorded push in pushlog
  $ hg -R server verifypushlog
  pushlog contains all 4 changesets across 4 pushes
  $ python3 sql.py server/.hg/pushlog2.db 'select * from pushlog'
  1|alice@example.com|* (glob)
  2|bob|* (glob)
  3|carol|* (glob)
  4|dave|* (glob)

So does a damaged one, which is kept aside.

  $ echo rubbish > server/.hg/pushlog2.db
  $ hg -R server log -r tip -T '{rev} {pushid} {pushuser}\n'
  3 4 dave
  $ cd client; echo 4 > f; hg -q commit -m c4; USER=erin hg push -q ../server; cd ..
  recorded push in pushlog
  $ hg -R server log -T '{rev} {pushid} {pushuser}\n'
  4 5 erin
  3 4 dave
  2 3 carol
  1 2 bob
  0 1 alice@example.com
  $ cat server/.hg/pushlog2.db.damaged
  rubbish

A damaged tail of the file is cut, and what SQLite still knows is recorded again.

  $ python3 -c "
  > with open('server/.hg/store/pushlog.log', 'r+b') as file:
  >     file.truncate(len(file.read()) - 10)"
  $ hg -R server log -r tip -T '{rev} {pushid} {pushuser}\n'
  4 5 erin
  $ hg -R server verifypushlog
  pushlog.log: damaged record at byte 559: 93 bytes announced, fewer found
  pushlog has errors
  [1]
  $ cd client; echo 5 > f; hg -q commit -m c5; USER=fay hg push -q ../server; cd ..
  pushlog.log: damaged record at byte 559: 93 bytes announced, fewer found; what follows is taken from pushlog2.db, and the damaged rest is kept in pushlog-damaged.log
  recorded push in pushlog
  $ hg -R server verifypushlog
  pushlog contains all 6 changesets across 6 pushes
  $ rm server/.hg/pushlog2.db
  $ hg -R server log -T '{rev} {pushid} {pushuser}\n'
  5 6 fay
  4 5 erin
  3 4 dave
  2 3 carol
  1 2 bob
  0 1 alice@example.com

Obsolete changesets stay recorded.

  $ cat >> server/.hg/hgrc << EOF
  > [experimental]
  > evolution.createmarkers = yes
  > [phases]
  > publish = no
  > EOF
  $ hg -R server phase --force --draft -r 0:
  $ hg -R server debugobsolete `hg -R server log -r tip -T '{node}'` > /dev/null
  $ hg -R server log -r 'pushid(6) or tip' -T '{rev} {pushid}\n'
  4 5
  $ hg -R server log --hidden -r 'pushid(6)' -T '{rev} {pushid}\n'
  5 6
  $ hg -R server verifypushlog
  pushlog contains all 6 changesets across 6 pushes

In a folder of a group the group reads and writes all, for any umask of the first pusher or the repairing user.

  $ hg init grouped
  $ chmod 2770 grouped/.hg grouped/.hg/store
  $ umask 077
  $ cd client; USER=alice hg push -q ../grouped; cd ..
  recorded push in pushlog
  $ stat -c '%a %n' grouped/.hg/pushlog2.db grouped/.hg/store/pushlog.log
  660 grouped/.hg/pushlog2.db
  660 grouped/.hg/store/pushlog.log
  $ hg -R grouped repairpushlog
  pushlog2.db rebuilt: nothing changed in 1 pushes
  $ stat -c '%a %n' grouped/.hg/pushlog2.db
  660 grouped/.hg/pushlog2.db
