Events that are applied while a mirror answers a client.

  $ cat >> "$HGRCPATH" << EOF
  > [extensions]
  > *:required = yes
  > pushlog =
  > [web]
  > server-header = no
  > EOF
  $ release() { "$PYTHON" "$TESTDIR/release.py" "$@"; }
  $ get() { "$PYTHON" "$RUNTESTDIR/get-with-headers.py" localhost:$HGPORT "$@"; }
  $ hg init master; cd master
  $ for i in 0 1 2; do echo $i > file; hg commit --quiet --addremove -m "change $i" -d "$i 0"; done
  $ hg phase --public tip
  $ cd ..
  $ hg init repo; hg -R repo pull --quiet -r 1 master
  $ cat > role.hgrc << EOF
  > [extensions]
  > *:required = yes
  > vcsreplicator =
  > apply = $TESTTMP/apply.py
  > [vcsreplicator]
  > role = mirror
  > [experimental]
  > stream-v3 = yes
  > EOF

An event is applied after a stream clone was offered: the clone waits for its release, and has it.

  $ cat > apply.py << EOF
  > import os, subprocess
  > from mercurial import extensions, streamclone
  > from hgext.vcsreplicator.hg.serving import copies
  > def offered(orig, repo):
  >     answer = orig(repo)
  >     if answer and os.path.exists('apply.now'):
  >         with open('apply.now') as patience:
  >             copies.STREAM_PATIENCE = float(patience.read() or 0)
  >         os.rename('apply.now', 'applying')
  >         clean = {**os.environ, 'HGRCPATH': os.devnull}
  >         subprocess.run(['hg', '-R', 'repo', 'pull', '--quiet', 'master'], check=True, env=clean)
  >         os.rename('applying', 'applied')
  >     return answer
  > def extsetup(ui):
  >     extensions.wrapfunction(streamclone, 'allowservergeneration', offered)
  > EOF
  $ release repo 2
  $ HGRCPATH="$HGRCPATH:$TESTTMP/role.hgrc" hg serve -R repo -p $HGPORT -d --pid-file hg.pid -E errors.log
  $ cat hg.pid >> $DAEMON_PIDS
  $ echo 60 > apply.now
  $ (while ! test -f applied; do sleep 0.05; done; release repo 3) &
  $ hg clone --quiet --stream http://localhost:$HGPORT/ waited; hg -R waited tip -T '{rev}\n'
  2
  $ wait

Without a release it is refused, and the client reads why.

  $ hg -R master commit --quiet --config ui.allowemptycommit=yes -m more -d '3 0'; hg -R master phase --public tip
  $ : > apply.now
  $ hg clone --quiet --stream http://localhost:$HGPORT/ refused
  remote: abort: this mirror holds changesets that are not released yet; please retry, or without --stream
  abort: pull failed on remote
  [100]
  $ hg -R repo tip -T '{rev}\n'
  3

Old clients read that the repository cannot be locked.

  $ release repo 4
  $ hg -R master commit --quiet --config ui.allowemptycommit=yes -m 'even more' -d '4 0'; hg -R master phase --public tip
  $ cat > asked.py << EOF
  > from mercurial import ui
  > from pushlog.versions import factory, initialize
  > initialize()
  > peer = factory.peer(ui.ui.load(), {}, b'http://localhost:$HGPORT/')
  > open('apply.now', 'w').close()
  > print(peer.stream_out().read(2))
  > EOF
  $ "$PYTHON" asked.py
  b'2\n'
  $ cat errors.log

A mirror's worker keeps the caches of the view warm, with any configuration of its own; what is not released is not in them.

  $ cat > warm.py << EOF
  > from mercurial import ui
  > from pushlog.versions import factory, initialize
  > from hgext.vcsreplicator.hg.serving import views
  > initialize()
  > repo = factory.repository(ui.ui.load(), b'repo')
  > views.warm(repo)
  > print(repo.filtered(views.VIEW).branchmap().branchtip(b'default').hex()[:12])
  > EOF
  $ "$PYTHON" warm.py
  66e02310782a
  $ ls repo/.hg/cache | grep replicated
  branch2-replicatedbase-topic
  tags2-replicatedserved
  $ get '?cmd=branchmap' | tail -1
  default 66e02310782a3590d8e0c36af8a2112d8a5638e5 (no-eol)
  $ release repo 5
  $ "$PYTHON" warm.py
  ed9dc04262ce
  $ get '?cmd=branchmap' | tail -1
  default ed9dc04262ce3f8c7c571d4fa43a01bc18b89b32 (no-eol)

Where changesets are hidden, so are those of the view in which the pushlog looks for them.

  $ hg -R repo phase --force --draft 4
  $ printf '[experimental]\nevolution = all\n' >> "$HGRCPATH"
  $ hg -R repo debugobsolete ed9dc04262ce3f8c7c571d4fa43a01bc18b89b32
  1 new obsolescence markers
  obsoleted 1 changesets
  $ "$PYTHON" warm.py
  66e02310782a
  $ ls repo/.hg/cache | grep hidden
  branch2-replicatedserved.hidden
  tags2-replicatedserved.hidden

The newer form of streams is guarded in the same way.

  $ release repo 5
  $ hg -R master commit --quiet --config ui.allowemptycommit=yes -m newest -d '5 0'; hg -R master phase --public tip
  $ : > apply.now
  $ hg clone --quiet --stream --config experimental.stream-v3=yes http://localhost:$HGPORT/ refused-v3
  remote: abort: this mirror holds changesets that are not released yet; please retry, or without --stream
  abort: pull failed on remote
  [100]
  $ cat errors.log
