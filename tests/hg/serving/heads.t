All heads of what is shown are looked up once for many requests. A running server gives the present answer after every change.

  $ cat >> "$HGRCPATH" << EOF
  > [extensions]
  > *:required = yes
  > pushlog =
  > strip =
  > [experimental]
  > evolution = all
  > [web]
  > server-header = no
  > EOF
  $ cat > role.hgrc << EOF
  > [extensions]
  > *:required = yes
  > vcsreplicator =
  > [vcsreplicator]
  > role = mirror
  > EOF
  $ release() { "$PYTHON" "$TESTDIR/release.py" "$@"; }
  $ cat > commit.py << EOF
  > import sys
  > from mercurial import context, ui
  > from pushlog.versions import factory, initialize
  > initialize()
  > repo = factory.repository(ui.ui.load(), sys.argv[1].encode())
  > for text in sys.argv[2:]:
  >     parents = (repo[0].node() if len(repo) else repo.nullid, repo.nullid)
  >     context.memctx(repo, parents, text.encode(), [], None, b'tester', b'0 0').commit()
  > EOF
  $ commit() { "$PYTHON" commit.py "$@"; }
  $ hg init repo; commit repo root 1 2 3
  $ release repo 3
  $ HGRCPATH="$HGRCPATH:$TESTTMP/role.hgrc" hg serve -R repo -p $HGPORT -d --pid-file hg.pid -E errors.log
  $ cat hg.pid >> $DAEMON_PIDS

The command `heads` gives the same answer twice, and `branchmap` the same heads in its order.

  $ cat > heads.py << EOF
  > from mercurial import ui
  > from pushlog.versions import factory, initialize
  > initialize()
  > peer = factory.peer(ui.ui.load(), {}, b'http://localhost:$HGPORT/')
  > repo = factory.repository(peer.ui, b'repo').unfiltered()
  > for _ in range(2):
  >     print(*(repo[node].description().decode() for node in peer.heads()))
  > print(*(repo[node].description().decode() for node in reversed(peer.branchmap()[b'default'])))
  > EOF
  $ heads() { "$PYTHON" heads.py; }
What is applied is not among them before its release.

  $ commit repo 4
  $ heads
  2 1
  2 1
  2 1
  $ release repo 5
  $ heads
  4 3 2 1
  4 3 2 1
  4 3 2 1

One that becomes obsolete is no head any more; that needs no release, and what is not released stays away.

  $ release repo 4
  $ hidden=$(hg -R repo log -r 1 -T '{node}')
  $ hg -R repo debugobsolete --quiet $hidden
  $ heads
  3 2
  3 2
  3 2

A client that asks for it reads the same words as for one that is not released.

  $ late=$(hg -R repo log -r 4 -T '{node}')
  $ get() { "$PYTHON" "$RUNTESTDIR/get-with-headers.py" localhost:$HGPORT "$@" | tail -1; }
  $ get "?cmd=lookup&key=$hidden"
  0 unknown revision 'f7e8fe12304007a1434b1d3318cef8e3e271402d'
  $ get "?cmd=lookup&key=$late"
  0 unknown revision 'e75400f5bd3ff3ac61a6523639da86ae1ea4a998'

A secret one, too.

  $ hg -R repo phase --force --secret 2
  $ heads
  3
  3
  3
  $ hg -R repo phase --public 2

After a strip the others are left, and what takes the places of those that went is shown when it is released.

  $ release repo 3
  $ hg -R repo strip --quiet --no-backup 3 4 --config extensions.vcsreplicator=!
  $ heads
  2
  2
  2
  $ commit repo 5 6
  $ heads
  2
  2
  2
  $ release repo 4
  $ heads
  5 2
  5 2
  5 2

Another repository of the same size takes the place of this one.

  $ hg init another; commit another root 7 8 9 10
  $ release another 4
  $ mv repo former; mv another repo
  $ heads
  9 8 7
  9 8 7
  9 8 7
  $ hg clone --quiet --pull --noupdate http://localhost:$HGPORT/ clone; hg log -R clone -r 'reverse(head())' -T '{desc} '
  9 8 7  (no-eol)
  $ cat errors.log

While releases come, each answer is that of one release, and none goes back.

  $ cat > race.py << EOF
  > import threading
  > from mercurial import extensions, ui
  > from mercurial.hgweb import hgweb_mod
  > from mercurial.node import hex
  > from pushlog.versions import factory, initialize
  > from hgext.vcsreplicator.hg.serving import watermark
  > initialize()
  > interface = ui.ui.load()
  > repo = factory.repository(interface, b'many').unfiltered()
  > nodes = [hex(repo.changelog.node(number)) for number in range(len(repo.changelog))]
  > def release(length):
  >     shown = watermark.Watermark(seq=length, length=length, tip=nodes[length - 1].decode(), push_id=None)
  >     watermark.write_watermark(repo, shown)
  > release(2)
  > web = hgweb_mod.hgweb(b'many', baseui=interface)
  > lengths = {b' '.join(reversed(nodes[1:length])) + b'\n': length for length in range(2, len(nodes) + 1)}
  > environment = {'REQUEST_METHOD': 'GET', 'SCRIPT_NAME': '', 'PATH_INFO': '/', 'QUERY_STRING': 'cmd=heads',
  >     'SERVER_NAME': 'localhost', 'SERVER_PORT': '80', 'SERVER_PROTOCOL': 'HTTP/1.1', 'wsgi.version': (1, 0),
  >     'wsgi.url_scheme': 'http', 'wsgi.input': None, 'wsgi.errors': None, 'wsgi.multithread': True,
  >     'wsgi.multiprocess': False, 'wsgi.run_once': False}
  > def ask():
  >     return lengths[b''.join(web(dict(environment), lambda *_: None))]
  > ended, seen = threading.Event(), [[], [], []]
  > def client(answers):
  >     while not ended.is_set():
  >         answers.append(ask())
  > threads = [threading.Thread(target=client, args=(answers,)) for answers in seen]
  > for thread in threads: thread.start()
  > for length in range(2, len(nodes)):
  >     release(length)
  >     shown = ask()
  >     if shown != length: print('released', length, 'shown', shown)
  > ended.set()
  > for thread in threads: thread.join()
  > print([answers == sorted(answers) and answers[-1] < len(nodes) for answers in seen])
  > EOF
  $ hg init many; commit many root 1 2 3 4 5 6 7 8 9 10 11 12
  $ HGRCPATH="$HGRCPATH:$TESTTMP/role.hgrc" "$PYTHON" race.py
  [True, True, True]
