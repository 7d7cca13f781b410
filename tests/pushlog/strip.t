  $ cat >> $HGRCPATH << EOF
  > [extensions]
  > *:required = yes
  > pushlog =
  > strip =
  > blackbox =
  > [blackbox]
  > track = pushlog
  > [devel]
  > default-date = 1500000000 0
  > [ui]
  > rollback = yes
  > [alias]
  > rows = log --hidden -T '{rev} {desc} {pushid}\n'
  > EOF
  $ hg init server
  $ hg -q clone server client
  $ cd client
  $ for i in 0 1 2; do echo $i > f; hg -q commit -A -m c$i; done
  $ USER=alice hg push -q
  recorded push in pushlog
  $ hg -q update 0; echo 3 > g; hg -q commit -A -m c3
  $ USER=bob hg push -q -f
  recorded push in pushlog
  $ cd ../server

Stripped changesets leave their pushes; those that get another number keep their push.

  $ hg rows
  3 c3 2
  2 c2 1
  1 c1 1
  0 c0 1
  $ hg strip --no-backup -r 2
  changeset will be deleted from pushlog: 3893386f2e9f844483631301c575f9dfecbff06b
  changeset rev will be updated in pushlog: 5a451c840774ca5758acd9c7fd36fe9939a7573c
  $ hg rows
  2 c3 2
  1 c1 1
  0 c0 1
  $ hg verifypushlog
  pushlog contains all 3 changesets across 2 pushes
  $ hg blackbox | sed 's/.*> //'
  deleted 1 changesets from pushlog: 3893386f2e9f844483631301c575f9dfecbff06b
  reordered 1 changesets in pushlog
  $ ls .hg/store | grep pushlog
  pushlog.log

A push that loses its last changeset stays as an empty one, and its id is not used again.

  $ hg strip --no-backup -q -r 2
  $ hg verifypushlog
  pushlog entry has no nodes: #2
  pushlog contains all 2 changesets across 2 pushes
  $ cd ../client
  $ USER=carol hg push -q -f
  recorded push in pushlog
  $ cd ../server
  $ hg rows
  3 c3 3
  2 c2 3
  1 c1 1
  0 c0 1
  $ hg verifypushlog
  pushlog entry has no nodes: #2
  pushlog contains all 4 changesets across 3 pushes

Rebuilding SQLite from the file gives the same.

  $ rm .hg/pushlog2.db
  $ hg rows
  3 c3 3
  2 c2 3
  1 c1 1
  0 c0 1
  $ hg repairpushlog | sed 's/push #[0-9]*/push #N/' | sort | uniq -c | sed 's/^ *//'
  3 push #N: restored
  1 pushlog2.db rebuilt: 3 of 3 pushes changed
  $ hg rows
  3 c3 3
  2 c2 3
  1 c1 1
  0 c0 1
  $ hg repairpushlog
  pushlog2.db rebuilt: nothing changed in 3 pushes

A rollback takes the push back.

  $ cd ../client
  $ echo 4 > g; hg -q commit -m c4
  $ USER=dave hg push -q -f
  recorded push in pushlog
  $ cd ../server
  $ hg rows -r tip
  4 c4 4
  $ hg rollback --dry-run
  repository tip rolled back to revision 3 (undo push)
  $ hg rollback
  repository tip rolled back to revision 3 (undo push)
  $ hg rows -r tip
  3 c3 3
  $ hg verifypushlog
  pushlog entry has no nodes: #2
  pushlog contains all 4 changesets across 3 pushes
  $ cd ../client
  $ USER=dave hg push -q -f
  recorded push in pushlog
  $ hg -R ../server rows -r tip
  4 c4 5
  $ hg -R ../server verifypushlog
  pushlog entry has no nodes: #2
  pushlog contains all 5 changesets across 4 pushes

A strip where the extension is not loaded stays in the pushlog until a push needs the place.

  $ cd ../server
  $ hg strip --no-backup -q -r 2 --config extensions.pushlog=!
  $ hg verifypushlog
  pushlog entry has no nodes: #2
  changeset in pushlog entry #3 does not exist: 3893386f2e9f844483631301c575f9dfecbff06b
  pushlog has errors
  [1]
  $ cd ../client
  $ USER=erin hg push -q -f
  recorded push in pushlog
  $ hg -R ../server rows -r 2:
  2 c3 3
  3 c4 5
  4 c2 6
  $ hg -R ../server verifypushlog
  pushlog entry has no nodes: #2
  pushlog contains all 5 changesets across 5 pushes
  $ hg -R ../server strip --no-backup -q -r 4 --config extensions.pushlog=!
  $ echo 5 > g; hg -q commit -m c5
  $ USER=fay hg push -q -f -r tip
  recorded push in pushlog
  $ hg -R ../server rows -r 2:
  2 c3 3
  3 c4 5
  4 c5 7
  $ hg -R ../server verifypushlog
  pushlog entry has no nodes: #2
  pushlog entry has no nodes: #6
  pushlog contains all 5 changesets across 6 pushes
  $ rm ../server/.hg/pushlog2.db
  $ hg -R ../server verifypushlog
  pushlog entry has no nodes: #2
  pushlog entry has no nodes: #6
  pushlog contains all 5 changesets across 6 pushes

A rollback takes back the first push into a database that came from elsewhere, too.

  $ cd ..
  $ hg init elsewhere
  $ cd client
  $ USER=alice hg push -q -r 1 ../elsewhere
  recorded push in pushlog
  $ rm ../elsewhere/.hg/store/pushlog.log
  $ USER=bob hg push -q -r 2 ../elsewhere
  recorded push in pushlog
  $ cd ../elsewhere
  $ hg rows
  2 c2 2
  1 c1 1
  0 c0 1
  $ hg rollback -q
  $ hg rows
  1 c1 1
  0 c0 1
  $ hg verifypushlog
  pushlog entry has no nodes: #2
  pushlog contains all 2 changesets across 2 pushes
