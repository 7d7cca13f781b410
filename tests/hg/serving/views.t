What an operator asks to show less of, a mirror shows less of; archives and unions hold nothing that is not released.

  $ cat >> "$HGRCPATH" << EOF
  > [extensions]
  > *:required = yes
  > pushlog =
  > [web]
  > server-header = no
  > allow-archive = zip
  > archivesubrepos = yes
  > EOF
  $ release() { HGRCPATH="$HGRCPATH:$TESTTMP/role.hgrc" "$PYTHON" "$TESTDIR/release.py" "$@"; }
  $ get() { "$PYTHON" "$RUNTESTDIR/get-with-headers.py" localhost:$HGPORT "$@"; }
  $ cat > role.hgrc << EOF
  > [extensions]
  > *:required = yes
  > vcsreplicator =
  > [vcsreplicator]
  > role = mirror
  > [phases]
  > publish = no
  > EOF
  $ hg init repo; cd repo
  $ for i in 0 1 2 3; do echo $i > file; hg commit -qAm "change $i" -d "$i 0"; done
  $ hg phase --public 0
  $ hg phase --secret --force 2; hg phase --draft 2
  $ cd ..; release repo 3
  $ on_mirror() { HGRCPATH="$HGRCPATH:$TESTTMP/role.hgrc" "$@"; }
  $ serve() { on_mirror hg serve -R repo -p $HGPORT -d --pid-file hg.pid -E errors.log "$@"; cat hg.pid >> $DAEMON_PIDS; }
  $ stop() { "$PYTHON" "$RUNTESTDIR/killdaemons.py" hg.pid; cat errors.log; rm -f errors.log; }

A view that is smaller than what is served stays smaller, for pages and for clients.

  $ ssh="\"$PYTHON\" \"$RUNTESTDIR/dummyssh\""
  $ for view in visible all immutable base; do
  >   printf "[web]\nview = $view\n[server]\nview = $view\n" > repo/.hg/hgrc
  >   serve; echo $view: $(get json-log | grep '"desc"' | cut -d '"' -f 4); get '?cmd=heads' | tail -1 | cut -c 1-12; stop
  >   on_mirror hg id -i -r tip ssh://user@dummy/repo --config ui.ssh="$ssh"
  > done
  visible: change 2 change 1 change 0
  ed51d10d1b1e
  ed51d10d1b1e
  all: change 2 change 1 change 0
  ed51d10d1b1e
  ed51d10d1b1e
  immutable: change 0
  90a8f74e9175
  90a8f74e9175
  base: change 0
  90a8f74e9175
  90a8f74e9175

So does one that a repository's owner chose, whom the web server need not trust.

#if root
  $ printf '[web]\nview = immutable\n' > repo/.hg/hgrc; chown 65534 repo/.hg/hgrc
  $ serve 2> /dev/null; get json-log | grep '"desc"' | cut -d '"' -f 4; stop; rm repo/.hg/hgrc
  change 0
#endif

A view that cannot be limited is refused.

  $ printf '[web]\nview = visible-hidden\n' > repo/.hg/hgrc
  $ serve; get json-log; get '?cmd=heads'; stop
  500 Internal Server Error
  
  a mirror cannot limit the view visible-hidden: expected served, visible, all, immutable or base
  500 Internal Server Error
  
  a mirror cannot limit the view visible-hidden: expected served, visible, all, immutable or base
  $ printf '[server]\nview = visible-hidden\n' > repo/.hg/hgrc
  $ serve; get '?cmd=heads'; stop
  500 Internal Server Error
  
  a mirror cannot limit the view visible-hidden: expected served, visible, all, immutable or base
  $ on_mirror hg id -i -r tip ssh://user@dummy/repo --config ui.ssh="$ssh"
  remote: abort: a mirror cannot limit the view visible-hidden: expected served, visible, all, immutable or base
  abort: no suitable response from remote hg
  [255]
  $ on_mirror hg id -i -r tip repo/../repo
  abort: a mirror cannot limit the view visible-hidden: expected served, visible, all, immutable or base
  [255]
  $ rm repo/.hg/hgrc

An archive has no subrepositories in it: not what is not released there, and nothing is fetched for it.

  $ hg init repo/nested; echo late > repo/nested/late; hg -R repo/nested commit -qAm late -d '0 0'
  $ hg init repo/gone; echo fetched > repo/gone/fetched; hg -R repo/gone commit -qAm fetched -d '0 0'
  $ cd repo; hg update -q 3; printf 'nested = nested\ngone = ../gone\n' > .hgsub
  $ hg add .hgsub; hg commit -qm subrepositories -d '4 0'; cd ..; mv repo/gone gone
  $ hg -R repo phase --draft 4; release repo 5
  $ serve
  $ "$PYTHON" -c "
  > import io, urllib.request, zipfile
  > archive = urllib.request.urlopen('http://localhost:$HGPORT/archive/tip.zip').read()
  > print([name.rpartition('/')[2] for name in zipfile.ZipFile(io.BytesIO(archive)).namelist()])
  > "
  ['.hg_archival.txt', '.hgsub', '.hgsubstate', 'file']
  $ stop; test -e repo/gone
  [1]

A union of a mirror's repository and another one shows what is released; on the mirror's own machine, everything.

  $ hg clone -q -r 1 repo one; cd one; echo own > own; hg commit -qAm own -d '9 0'; cd ..
  $ release repo 3
  $ on_mirror hg clone -q union:repo+one both
  $ hg -R both log -T '{desc}\n'
  change 2
  change 1
  change 0
  $ hg -R both verify -q
  $ on_mirror hg -R union:repo+one log -T '{desc} {files};'
  own own;subrepositories .hgsub .hgsubstate;change 3 file;change 2 file;change 1 file;change 0 file; (no-eol)

A released changeset that is hidden is shown in the one view that asks for it, and not to one that asks for more than is served.

  $ printf '[experimental]\nevolution = all\n' >> role.hgrc
  $ hg init hiding; cd hiding
  $ for name in kept pruned; do echo > $name; hg commit -qAm $name -d '0 0'; done; hg update -q 0
  $ hg debugobsolete $(hg log -r 1 -T '{node}') --config experimental.evolution=all
  1 new obsolescence markers
  obsoleted 1 changesets
  $ cd ..; release hiding 2; mv repo before; mv hiding repo
  $ for view in served served.hidden visible all; do
  >   printf "[web]\nview = $view\n" > repo/.hg/hgrc
  >   serve; echo $view: $(get json-log | grep '"desc"' | cut -d '"' -f 4); stop
  > done
  served: kept
  served.hidden: pruned kept
  visible: kept
  all: kept

The pushlog hides what its view hides for its phase: drafts and, where the view shows none, obsolete drafts as well. So it is on a server
that is no mirror.

  $ printf '[experimental]\nevolution = all\n[phases]\npublish = no\n' > repo/.hg/hgrc; hg -R repo phase --public 0
  $ rm -rf pushed; hg init pushed; cp repo/.hg/hgrc pushed/.hg/hgrc
  $ hg clone -q -r 0 repo source --config phases.publish=no; cd source
  $ echo d > d; hg commit -qAm draft -d '0 0' --config phases.new-commit=draft
  $ echo o > o; hg commit -qAm obsolete -d '0 0' --config phases.new-commit=draft
  $ hg push -q ../pushed; cd ..
  recorded push in pushlog
  $ hg -R pushed debugobsolete $(hg -R pushed log -r 2 -T '{node}')
  1 new obsolescence markers
  obsoleted 1 changesets
  $ release pushed 3 1 1; rm -r repo; mv pushed repo; cp repo/.hg/hgrc hgrc
  $ show() { get 'json-pushes?full=1&version=2' | grep -o '"desc": "[a-z]*"\|"obsoletechangesets"' | cut -d '"' -f 2,4 | tr '"\n' ' '; }
  $ count() { get '?cmd=pushlog&firstpush=1' | grep -o '[0-9a-f]\{40\}' | wc -l; }
  $ for view in served visible immutable base; do
  >   { cat hgrc; printf "[web]\nview = $view\n[server]\nview = $view\n"; } > repo/.hg/hgrc
  >   serve; echo mirror $view: $(show) $(count); stop
  >   hg serve -R repo -p $HGPORT -d --pid-file hg.pid -E errors.log; cat hg.pid >> $DAEMON_PIDS
  >   echo other $view: $(show) $(count); stop
  > done
  mirror served: desc kept desc draft obsoletechangesets desc obsolete 3
  other served: desc kept desc draft obsoletechangesets desc obsolete 3
  mirror visible: desc kept desc draft obsoletechangesets desc obsolete 3
  other visible: desc kept desc draft obsoletechangesets desc obsolete 3
  mirror immutable: desc kept 1
  other immutable: desc kept 1
  mirror base: desc kept 1
  other base: desc kept 1
