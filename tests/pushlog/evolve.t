A server and a client with evolve, whose changesets stay drafts.

  $ cat >> $HGRCPATH << EOF
  > [extensions]
  > *:required = yes
  > pushlog =
  > evolve =
  > [devel]
  > default-date = 1500000000 0
  > [phases]
  > publish = no
  > EOF
  $ hg init server
  $ hg -q clone server client
  $ cd client
  $ for name in base one two; do echo $name > f; hg -q commit -A -m $name; done
  $ USER=alice hg push -q
  recorded push in pushlog

Rewritten changesets are a push of their own. Markers alone are no push.

  $ hg -q update 1
  $ hg -q amend -m amended
  1 new orphan changesets
  $ hg -q evolve
  $ USER=bob hg push -q
  recorded push in pushlog
  $ hg -q prune -r tip
  $ USER=carol hg push -q
  [1]
  $ pushes() { hg -R ../server log -T '{rev} {pushid} {pushuser} {desc}{if(obsolete, ", obsolete")}\n' "$@"; }
  $ pushes
  3 2 bob amended
  0 1 alice base
  $ pushes --hidden
  4 2 bob two, obsolete
  3 2 bob amended
  2 1 alice two, obsolete
  1 1 alice one, obsolete
  0 1 alice base
  $ hg -R ../server verifypushlog
  pushlog contains all 5 changesets across 2 pushes

Without evolve a server shows the same pushes.

  $ pushes --config extensions.evolve=! 2> warned
  3 2 bob amended
  0 1 alice base
  $ grep -c 'not enabled but 3 markers found' warned
  1
