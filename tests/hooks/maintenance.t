A server in maintenance takes no pushes of any kind, says why, and goes on being cloned from.

  $ cat >> "$HGRCPATH" << EOF
  > [ui]
  > ssh = "$PYTHON" "$RUNTESTDIR/dummyssh"
  > EOF
  $ hg init server
  $ cat >> server/.hg/hgrc << EOF
  > [hooks]
  > pretxnopen.maintenance = python:hooks.maintenance.refuse
  > [maintenance]
  > file = maintenance
  > EOF
  $ hg clone --quiet ssh://user@dummy/server client
  $ cd client
  $ echo 1 > file; hg commit --quiet --addremove -m one
  $ hg push --quiet

The file's words are what pushers read; bookmarks and phases are refused as changesets are.

  $ echo 'moving to new disks until 14:00 UTC' > ../server/.hg/maintenance
  $ echo 2 > file; hg commit --quiet -m two
  $ hg push
  pushing to ssh://user@dummy/server
  searching for changes
  remote: error: pretxnopen.maintenance hook failed: moving to new disks until 14:00 UTC
  remote: moving to new disks until 14:00 UTC
  abort: push failed on remote
  [100]

They are over HTTP too.

  $ cat >> ../server/.hg/hgrc << EOF
  > [web]
  > allow-push = *
  > push_ssl = no
  > EOF
  $ hg serve -R ../server -p $HGPORT -d --pid-file hg.pid --errorlog errors; cat hg.pid >> $DAEMON_PIDS
  $ hg push http://localhost:$HGPORT/
  pushing to http://localhost:$HGPORT/
  searching for changes
  remote: moving to new disks until 14:00 UTC
  abort: push failed on remote
  [100]
  $ cat errors

  $ hg bookmark -r 0 stable; hg push --bookmark stable -r 0
  pushing to ssh://user@dummy/server
  searching for changes
  no changes found
  remote: error: pretxnopen.maintenance hook failed: moving to new disks until 14:00 UTC
  remote: moving to new disks until 14:00 UTC
  abort: push failed on remote
  [100]
  $ hg push --bookmark stable -r 0 --config devel.legacy.exchange=bundle1 2>&1 | grep -v '^remote: abort'
  pushing to ssh://user@dummy/server
  searching for changes
  no changes found
  remote: error: pretxnopen.maintenance hook failed: moving to new disks until 14:00 UTC
  abort: unexpected response: empty string
  $ printf '[hooks]\nprepushkey.maintenance = python:hooks.maintenance.refuse\n' >> ../server/.hg/hgrc
  $ hg push --bookmark stable -r 0 --config devel.legacy.exchange=bundle1
  pushing to ssh://user@dummy/server
  searching for changes
  no changes found
  remote: moving to new disks until 14:00 UTC
  remote: pushkey-abort: prepushkey.maintenance hook failed
  exporting bookmark stable failed
  [1]
  $ hg push --bookmark stable -r 0 2>&1 | grep failed
  remote: error: pretxnopen.maintenance hook failed: moving to new disks until 14:00 UTC
  abort: push failed on remote
  $ hg -R ../server log -T '{rev} {desc} {bookmarks}\n'
  0 one 
  $ hg clone --quiet ssh://user@dummy/server ../other; hg -R ../other log -T '{rev}\n'
  0

An empty file means it too, and so does an unreadable file.

  $ : > ../server/.hg/maintenance; hg push 2>&1 | grep '^remote: this.*read-only'
  remote: this repository is read-only for maintenance; please push again later
  $ rm ../server/.hg/maintenance; mkdir ../server/.hg/maintenance; hg push 2>&1 | grep '^remote: this.*read-only'
  remote: this repository is read-only for maintenance; please push again later
  $ rmdir ../server/.hg/maintenance

A message in the configuration needs no file.

  $ printf '[maintenance]\nmessage = archived, see https://hg.example/new\n' >> ../server/.hg/hgrc
  $ hg push 2>&1 | grep '^remote: archived'
  remote: archived, see https://hg.example/new
  $ sed -i.old /^message/d ../server/.hg/hgrc

The server's own people are not stopped.

  $ : > ../server/.hg/maintenance
  $ hg -R ../server bookmark -r 0 ours
  $ hg -R ../server pull --quiet .
  $ hg -R ../server tip -T '{rev}\n'
  1
  $ echo 3 > file; hg commit --quiet -m three; hg bundle --quiet --base 1 ../three.hg
  $ hg -R ../server unbundle --quiet ../three.hg
  $ hg -R ../server tip -T '{rev}\n'
  2

Afterwards everything is as before.

  $ rm ../server/.hg/maintenance ../server/.hg/bookmarks
  $ hg push --quiet --bookmark stable
  [1]
