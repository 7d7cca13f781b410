A pushed copy of a whole store would bypass every hook: this one refuses it, over each protocol.

  $ printf '[ui]\nssh = python3 "%s/dummyssh"\n' "$RUNTESTDIR" >> $HGRCPATH
  $ hg init source; cd source
  $ echo 'inner = http://elsewhere.example/' > .hgsub; python -c 'print("x" * 5000)' > large
  $ hg commit --quiet --addremove -m 'large, with a subrepository' -d '0 0'
  $ hg bundle --quiet --all -t 'none-v2;stream=v2' ../stream.hg; hg bundle --quiet --all ../changesets.hg; cd ..
  $ hg init server
  $ cat >> server/.hg/hgrc << EOF
  > [hooks]
  > pretxnopen.streams = python:hooks.streams.refuse
  > pretxnchangegroup.subrepositories = python:hooks.subrepositories.refuse
  > pretxnclose.sizes = python:hooks.sizes.check
  > [sizes]
  > file = 1 kb
  > [web]
  > allow-push = *
  > push_ssl = no
  > EOF
  $ hg serve -R server -d -p $HGPORT --pid-file hg.pid -E errors.log
  $ cat hg.pid >> $DAEMON_PIDS
  $ for url in http://localhost:$HGPORT/ ssh://user@dummy/server; do
  >   python "$TESTDIR/send-bundle.py" $url stream.hg
  >   hg -R server log
  > done
  abort: a push cannot bring a copy of a whole store; push changesets instead
  abort: a push cannot bring a copy of a whole store; push changesets instead
  $ ls server/.hg/store/data 2> /dev/null
  [2]

Changesets are left to the other policies, and a clone by such a copy still works.

  $ hg -R server unbundle --quiet changesets.hg 2>&1 | grep changes
  changeset * changes .hgsub: subrepositories are not taken here (glob)
  $ hg clone --quiet -U --stream source copy --config hooks.pretxnopen.streams=python:hooks.streams.refuse
  $ hg -R copy log -T '{desc}\n'
  large, with a subrepository

A server that opens transactions late could not refuse in time: it takes nothing.

  $ printf '[experimental]\nbundle2lazylocking = yes\n' >> server/.hg/hgrc
  $ python "$TESTDIR/send-bundle.py" ssh://user@dummy/server stream.hg | grep ^abort
  abort: config: [experimental] bundle2lazylocking: expected no, as copies of a store could not be refused with it
  $ hg -R server log
