A pushed copy of a whole store would bypass every hook and the pushlog: parts of that kind are refused.

  $ . "$TESTDIR/master.sh"
  $ hg init -q source
  $ hg -R source debugbuilddag +3
  $ hgm init -q repos/one
  $ cat >> repos/one/.hg/hgrc <<E
  > [hooks]
  > pretxnchangegroup.no = false
  > E
  $ for stream in v2 v3-exp; do
  >   hg -R source bundle -q -a -t "none-v2;stream=$stream" $stream.hg --config experimental.stream-v3=yes
  >   python "$TESTDIR/send-bundle.py" ssh://user@dummy/$TESTTMP/repos/one $stream.hg
  >   hgm -R repos/one log
  > done
  abort: a push cannot bring this part: 'stream2'
  abort: a push cannot bring this part: 'stream3-exp'

A server that has only the pushlog refuses them too.

  $ hg init recorded
  $ cat >> recorded/.hg/hgrc <<E
  > [extensions]
  > *:required = yes
  > pushlog =
  > E
  $ sed -i 's/^HGRCPATH=.*/HGRCPATH=/' ssh
  $ python "$TESTDIR/send-bundle.py" ssh://user@dummy/$TESTTMP/recorded v2.hg
  abort: a push cannot bring a copy of a whole store; push changesets instead
  $ hg -R recorded log

A clone made by such a copy still works.

  $ hgm clone -q -U --stream source repos/two
  $ events
  one 1 created origin=init after=0
  two 1 created origin=clone (master) after=3

It copies phases and markers too, of which Mercurial's transaction says nothing: the event has the phases, and mirrors ask for the
markers.

  $ hg -R source debugobsolete -q 1111111111111111111111111111111111111111 `hg -R source log -r 2 -T '{node}'`
  $ cat >> source/.hg/hgrc <<E
  > [phases]
  > publish = no
  > [experimental]
  > evolution = all
  > E
  $ hgm clone -q -U --stream --config ui.ssh=$TESTTMP/ssh ssh://user@dummy/$TESTTMP/source repos/drafts
  $ hgm -R repos/drafts log -T '{rev} {phase}\n'
  2 draft
  1 draft
  0 draft
  $ hgm -R repos/drafts debugobsolete | wc -l | tr -d ' '
  1
  $ events drafts
  drafts 1 created origin=init after=0
  drafts 2 changed +3 heads+1 phase1:1 (inline) after=3
  drafts 3 sync bootstrap=false reason=outside (master) after=3
