Evolve and topic do their work on a master and on a mirror, in any order in hgrc.

  $ . "$TESTDIR/master.sh"
  $ cat >> "$HGRCPATH" << EOF
  > [extensions]
  > evolve =
  > topic =
  > EOF
  $ cat > first.hgrc << EOF
  > [extensions]
  > *:required = yes
  > evolve =
  > topic =
  > pushlog =
  > vcsreplicator =
  > EOF
  $ cat > last.hgrc << EOF
  > [extensions]
  > *:required = yes
  > pushlog =
  > vcsreplicator =
  > evolve =
  > topic =
  > EOF
  $ for order in first last; do
  >   sed '/./{/extensions/,/^strip/d}; /^evolution = all/d' master.hgrc | cat $order.hgrc - > master-$order.hgrc
  >   printf '[vcsreplicator]\nrole = mirror\n[experimental]\nevolution = all\n[phases]\npublish = no\n' | cat $order.hgrc - > mirror-$order.hgrc
  > done
  $ cp master-first.hgrc master.hgrc
  $ printf '[phases]\npublish = no\n' >> master.hgrc; printf '[phases]\npublish = no\n' >> master-last.hgrc
  $ release() { HGRCPATH=$TESTTMP/mirror-first.hgrc "$PYTHON" "$TESTDIR/release.py" "$@"; }
  $ said() { grep -v '^remote: recorded\|^pushing\|^searching\|^remote: adding' | sed 's/^\(.\{100\}\).*/\1/'; }

A push with a topic, a rewrite of it, and one from a topic to its publication, to a master of either order.

  $ hgm init repos/one
  (recorded repository creation in replication log in *s) (glob)
  $ hg clone -q ssh://user@dummy/$TESTTMP/repos/one clone; cd clone
  $ echo 0 > file; hg commit -qAm root; hg phase --public .
  $ hg push 2>&1 | said
  remote: added 1 changesets with 1 changes to 1 files
  $ hg topic -q feature; echo 1 > file; hg commit -qm 'wrong text'
  $ cp ../master-last.hgrc ../master.hgrc
  $ hg push 2>&1 | said
  remote: added 1 changesets with 1 changes to 1 files
  $ hg metaedit -qm 'right text'
  $ hg push 2>&1 | said
  remote: added 1 changesets with 0 changes to 1 files (+1 heads)
  remote: 1 new obsolescence markers
  remote: obsoleted 1 changesets
  $ hg topic -q other -r 'desc("right")'
  $ hg push -f 2>&1 | said
  remote: added 1 changesets with 0 changes to 1 files (+1 heads)
  remote: 1 new obsolescence markers
  remote: obsoleted 1 changesets
  $ cd ..
  $ events | wc -l
  5

Each event states what clients of that master meet, where evolve alone enables markers.

  $ grep -ao '"settings":{"evolution[^}]*false' repos/one/.hg/store/outbox.*.log | sort | uniq -c
        5 "settings":{"evolution":["exchange=yes"],"publishing":false

A mirror that holds them shows what is released, to clients with topic and without, over SSH, HTTP and by path.

  $ cp -R repos/one mirror; rm mirror/.hg/store/outbox.*
  $ cat > ssh << EOF
  > #!/bin/sh
  > shift
  > HGRCPATH=$TESTTMP/mirror.hgrc; export HGRCPATH
  > eval "\$*"
  > EOF
  $ without() { hg --config extensions.topic=! --config extensions.evolve=! "$@"; }
  $ ask() {
  >   HGRCPATH=$TESTTMP/mirror.hgrc hg serve -R mirror -p $HGPORT -d --pid-file hg.pid -E errors.log; cat hg.pid >> $DAEMON_PIDS
  >   rm -rf got; hg clone -q http://localhost:$HGPORT/ got; hg -R got log -T '{desc} {topic};'; echo
  >   rm -rf got; without clone -q ssh://user@dummy/$TESTTMP/mirror got; hg -R got log -T '{desc} {topic};'; echo
  >   for page in '?cmd=branchmap' '?cmd=heads' json-branches; do
  >     "$PYTHON" "$RUNTESTDIR/get-with-headers.py" --headeronly localhost:$HGPORT "$page"
  >   done
  >   "$PYTHON" "$RUNTESTDIR/killdaemons.py" hg.pid
  >   cat errors.log; rm -f errors.log
  > }
  $ for order in first last; do
  >   cp mirror-$order.hgrc mirror.hgrc
  >   for released in 2 4; do
  >     release mirror $released
  >     echo "- $order, $released"
  >     ask
  >   done
  > done
  - first, 2
  root ;
  root ;
  200 Script output follows
  200 Script output follows
  200 Script output follows
  - first, 4
  right text other;root ;
  right text other;root ;
  200 Script output follows
  200 Script output follows
  200 Script output follows
  - last, 2
  root ;
  root ;
  200 Script output follows
  200 Script output follows
  200 Script output follows
  - last, 4
  right text other;root ;
  right text other;root ;
  200 Script output follows
  200 Script output follows
  200 Script output follows

Clients without topic get no changeset with a topic where the server says so, and no more of what is not released than others.

  $ release mirror 1
  $ printf '[experimental]\ntopic.server-gate-topic-changesets = yes\n' >> mirror.hgrc
  $ without clone -q ssh://user@dummy/$TESTTMP/mirror gated
  $ hg -R gated log -T '{desc} {topic}\n'
  root 
  $ release mirror 4
  $ without identify -r tip ssh://user@dummy/$TESTTMP/mirror
  74c982d2f4c0

What topic says of publishing, and what evolve offers of markers, follows the master's settings at the release, in any order in hgrc.

  $ for order in first last; do
  >   sed '/^\[experimental\]/,$d' mirror-$order.hgrc > mirror.hgrc
  >   for settings in 'yes no' 'no yes'; do
  >     echo "1 1 $settings" > mirror/.hg/replicated-settings
  >     echo "- $order, $settings"
  >     hg debugcapabilities ssh://user@dummy/$TESTTMP/mirror | grep -E '^ *(ext-topics-publish|_evoext|obsmarkers)'
  >   done
  > done
  - first, yes no
    ext-topics-publish=all
  - first, no yes
    _evoext_getbundle_obscommon
    _evoext_obshashrange_v1
    ext-topics-publish=none
    obsmarkers
  - last, yes no
    ext-topics-publish=all
  - last, no yes
    _evoext_getbundle_obscommon
    _evoext_obshashrange_v1
    ext-topics-publish=none
    obsmarkers
