A mirror refuses the commands with which Mercurial's extensions read files of their own, and their uploads.

  $ cat >> "$HGRCPATH" << EOF
  > [web]
  > server-header = no
  > allow-push = *
  > push_ssl = no
  > [largefiles]
  > usercache = $TESTTMP/usercache
  > [lfs]
  > usercache = $TESTTMP/lfscache
  > [remotefilelog]
  > server = yes
  > EOF
  $ hg init repo; cd repo
  $ for i in 0 1; do echo $i > file; hg commit -qAm "change $i" -d "$i 0"; done
  $ cd ..
  $ cat > role.hgrc << EOF
  > [extensions]
  > *:required = yes
  > pushlog =
  > vcsreplicator =
  > largefiles =
  > lfs =
  > remotefilelog =
  > [vcsreplicator]
  > role = mirror
  > EOF
  $ content=late; hash=$(printf $content | sha1sum | cut -c 1-40)
  $ new=$(printf new | sha1sum | cut -c 1-40); lfs=$(printf new | sha256sum | cut -c 1-64)
  $ mkdir -p repo/.hg/largefiles; printf $content > repo/.hg/largefiles/$hash
  $ HGRCPATH="$HGRCPATH:$TESTTMP/role.hgrc" "$PYTHON" "$TESTDIR/release.py" repo 1
  $ cat > ask.py << EOF
  > import urllib.request, urllib.error
  > def ask(name, what, body=None, method=None):
  >     request = urllib.request.Request("http://localhost:$HGPORT/" + what, data=body, method=method)
  >     try:
  >         with urllib.request.urlopen(request) as answer:
  >             print(name, answer.status, answer.read()[:70])
  >     except urllib.error.HTTPError as problem:
  >         print(name, problem.code, problem.reason)
  > ask("getlfile", "?cmd=getlfile&sha=$hash")
  > ask("statlfile", "?cmd=batch&cmds=heads+%3Bstatlfile+sha%3D$hash")
  > ask("putlfile", "?cmd=putlfile&sha=$new", b"new")
  > ask("lfs", ".hg/lfs/objects/$lfs", b"new", "PUT")
  > EOF
  $ HGRCPATH="$HGRCPATH:$TESTTMP/role.hgrc" hg serve -R repo -p $HGPORT -d --pid-file hg.pid -E errors.log; cat hg.pid >> $DAEMON_PIDS
  $ "$PYTHON" ask.py
  getlfile 200 b'a mirror does not answer the command getlfile\n'
  statlfile 200 b'a mirror does not answer the command statlfile\n'
  putlfile 403 this is a read-only mirror; push to the master instead
  lfs 403 this is a read-only mirror; push to the master instead
  $ cat errors.log

A client that may not read hears only that.

  $ HGRCPATH="$HGRCPATH:$TESTTMP/role.hgrc" hg serve -R repo -p $HGPORT1 -d --pid-file hg.pid -E errors.log --config 'web.deny_read=*'; cat hg.pid >> $DAEMON_PIDS
  $ sed "s/:$HGPORT/:$HGPORT1/" ask.py > ask-stranger.py; "$PYTHON" ask-stranger.py | grep '^putlfile\|^lfs'
  putlfile 401 read not authorized
  lfs 401 read not authorized
  $ cat errors.log

  $ cat > wire.py << EOF
  > from mercurial import ui
  > from pushlog.versions import factory, initialize
  > initialize()
  > ui = ui.ui.load()
  > ui.setconfig(b"ui", b"ssh", b'"$PYTHON" "$RUNTESTDIR/dummyssh"')
  > peer = factory.peer(ui, {}, b"ssh://user@dummy/repo")
  > print(peer._call(b"getlfile", sha=b"$hash"))
  > EOF
  $ HGRCPATH="$HGRCPATH:$TESTTMP/role.hgrc" "$PYTHON" wire.py 2>&1 | grep 'does not\|late'
  remote: a mirror does not answer the command getlfile
  $ find repo/.hg/largefiles usercache lfscache repo/.hg/store/lfs -type f 2> /dev/null
  repo/.hg/largefiles/5d6200f8cf98af475edcac2c97f966ad156ed51f
  [1]
