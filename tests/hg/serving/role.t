A mirror may have its role in any configuration file, and a Mercurial that cannot guard it serves nothing.

  $ cat >> "$HGRCPATH" << EOF
  > [web]
  > server-header = no
  > EOF
  $ release() { "$PYTHON" "$TESTDIR/release.py" "$@"; }
  $ get() { "$PYTHON" "$RUNTESTDIR/get-with-headers.py" localhost:$HGPORT "$@"; }
  $ hg init folder/repo; cd folder/repo
  $ for i in 0 1 2; do echo $i > file; hg commit -qAm "change $i" -d "$i 0"; done
  $ hg phase --public tip
  $ late=$(hg log -r 2 -T '{node}')
  $ cd ../..
  $ cat > role.hgrc << EOF
  > [extensions]
  > *:required = yes
  > pushlog =
  > vcsreplicator =
  > [vcsreplicator]
  > role = mirror
  > EOF
  $ sed '/^.vcsreplicator.$/,$d' role.hgrc > loaded.hgrc
  $ HGRCPATH="$HGRCPATH:$TESTTMP/role.hgrc" release folder/repo 2
  $ cat > folder.conf << EOF
  > [paths]
  > / = $TESTTMP/folder/**
  > EOF
  $ serve() {
  >   hg serve -p $HGPORT -d --pid-file hg.pid -A access.log -E errors.log "$@" || return
  >   cat hg.pid >> $DAEMON_PIDS
  > }
  $ asked() {
  >   get "$1?cmd=heads" | tail -1 | cut -c 1-12; echo
  >   get "$1?cmd=branchmap" | tail -1 | cut -d ' ' -f 2 | cut -c 1-12
  >   get --headeronly "$1rev/$late"; get --headeronly "$1raw-file/$late/file"
  >   get "$1json-log" | grep '"desc"'
  >   get "$1?cmd=unbundle" | grep -c 'read-only'
  >   "$PYTHON" "$RUNTESTDIR/killdaemons.py" hg.pid
  > }
  $ over_ssh() { hg id -i -r $late "ssh://user@dummy/folder/repo" --config ui.ssh="\"$PYTHON\" \"$RUNTESTDIR/dummyssh\"" "$@"; }
  $ shown() {
  >   asked "$1" > asked.log 2>&1
  >   grep -q $(echo $late | cut -c 1-12) asked.log && echo LEAK
  >   grep -q 'change 2' asked.log && echo LEAK
  >   grep -c '^404' asked.log
  >   grep 'desc' asked.log
  > }

In a file of HGRCPATH, as it should be:

  $ export OLDRC="$HGRCPATH"
  $ HGRCPATH="$OLDRC:$TESTTMP/role.hgrc" serve -R folder/repo; shown ''
  2
  "desc": "change 1",
  "desc": "change 0",
  $ HGRCPATH="$OLDRC:$TESTTMP/role.hgrc" serve --web-conf folder.conf; shown repo/
  2
  "desc": "change 1",
  "desc": "change 0",

On the command line:

  $ serve -R folder/repo --config extensions.pushlog= --config extensions.vcsreplicator= --config vcsreplicator.role=mirror; shown ''
  2
  "desc": "change 1",
  "desc": "change 0",

The role alone in the web server's file:

  $ cat folder.conf role.hgrc > web.conf
  $ HGRCPATH="$OLDRC:$TESTTMP/loaded.hgrc" serve --web-conf web.conf; shown repo/
  2
  "desc": "change 1",
  "desc": "change 0",

The role alone in the repository's hgrc, alone or in a folder, over HTTP and SSH:

  $ printf '[vcsreplicator]\nrole = mirror\n' > folder/repo/.hg/hgrc
  $ HGRCPATH="$OLDRC:$TESTTMP/loaded.hgrc" serve -R folder/repo; shown ''
  2
  "desc": "change 1",
  "desc": "change 0",
  $ HGRCPATH="$OLDRC:$TESTTMP/loaded.hgrc" serve --web-conf folder.conf; shown repo/
  2
  "desc": "change 1",
  "desc": "change 0",
  $ HGRCPATH="$OLDRC:$TESTTMP/loaded.hgrc" over_ssh
  abort: unknown revision '*' (glob)
  [255]

The extension too in the repository's hgrc:

  $ cp role.hgrc folder/repo/.hg/hgrc
  $ serve -R folder/repo; shown ''
  2
  "desc": "change 1",
  "desc": "change 0",
  $ serve --web-conf folder.conf; shown repo/
  2
  "desc": "change 1",
  "desc": "change 0",
  $ over_ssh
  abort: unknown revision '*' (glob)
  [255]
  $ rm folder/repo/.hg/hgrc

No role at all is a mistake, not a master:

  $ HGRCPATH="$OLDRC:$TESTTMP/loaded.hgrc" hg -R folder/repo log
  config error: config: [vcsreplicator] role: expected master or mirror, got nothing
  [30]

Nor does a master's configuration show what a mirror has written.

  $ sed 's/role = mirror/role = master/' role.hgrc > master.hgrc
  $ printf '[vcsreplicator]\nlog = sqlite:///nowhere\n[vcsreplicator-roots]\n/nowhere = .\n' >> master.hgrc
  $ touch folder/repo/.hg/store/replicated.log
  $ HGRCPATH="$OLDRC:$TESTTMP/master.hgrc" hg -R folder/repo log
  abort: this is a mirror's repository, and role = master would show what is not released
  (set HGRCPATH to the mirror's configuration, with [vcsreplicator] role = mirror)
  [255]
  $ HGRCPATH="$OLDRC:$TESTTMP/master.hgrc" over_ssh 2>&1 | grep 'abort: this'
  remote: abort: this is a mirror's repository, and role = master would show what is not released
  $ HGRCPATH="$OLDRC:$TESTTMP/master.hgrc" serve --web-conf folder.conf; shown repo/
  0
  [1]
  $ rm folder/repo/.hg/store/replicated.log
  $ HGRCPATH="$OLDRC:$TESTTMP/master.hgrc" hg -R folder/repo log -T '{desc}\n' -r tip
  change 2

With a Mercurial in which a way in cannot be guarded nothing is read and nothing taken, with the name of what is missing.

  $ cat > other.py << EOF
  > import os
  > from mercurial import bookmarks, repoview
  > from pushlog.versions import hgweb_mod_inner
  > how = os.environ.get("HOW")
  > if how == "bookmarks":
  >     del bookmarks._getbkfile
  > elif how == "views":
  >     repoview.wrapchangelog = lambda changelog: changelog
  > elif how == "web":
  >     hgweb_mod_inner.hgweb._runwsgi = lambda self, req, res: None
  > EOF
  $ sed "/required/d;s|^pushlog =|other = $TESTTMP/other.py\npushlog =|" role.hgrc > other.hgrc
  $ hg clone -q -r 0 folder/repo client; cd client; echo mine > file; hg commit -qm mine; cd ..
  $ for HOW in bookmarks views web; do
  >   export HOW
  >   HGRCPATH="$OLDRC:$TESTTMP/other.hgrc" serve -R folder/repo 2>&1 | grep -c 'cannot do its work with Mercurial .* mercurial\.'
  >   HGRCPATH="$OLDRC:$TESTTMP/other.hgrc" over_ssh 2>&1 | grep -c 'cannot do its work'
  >   HGRCPATH="$OLDRC:$TESTTMP/other.hgrc" hg -R client push ssh://user@dummy/folder/repo --config ui.ssh="\"$PYTHON\" \"$RUNTESTDIR/dummyssh\"" 2>&1 | grep -c 'cannot do its work'
  > done
  1
  1
  1
  1
  1
  1
  1
  1
  1
  $ HGRCPATH="$OLDRC:$TESTTMP/other.hgrc" serve --web-conf folder.conf
  $ get 'repo/?cmd=heads' 2>&1 | grep -c '^200'
  0
  [1]
  $ get 'repo/json-log' 2>&1 | grep -c 'desc'
  0
  [1]
  $ hg -R folder/repo log -T '{desc}\n' -r tip
  change 2
