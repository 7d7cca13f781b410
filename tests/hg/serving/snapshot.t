Which clients may copy a repository with its hidden changesets: none, unless the configuration allows it.

  $ cat >> "$HGRCPATH" << EOF
  > [extensions]
  > *:required = yes
  > pushlog =
  > vcsreplicator =
  > [vcsreplicator]
  > role = master
  > relay = $TESTTMP/nowhere
  > acknowledge = outbox
  > [vcsreplicator-roots]
  > $TESTTMP/repos = .
  > [web]
  > server-header = no
  > EOF
  $ get() { "$PYTHON" "$RUNTESTDIR/get-with-headers.py" localhost:$HGPORT "$@" | tr -d '\000' | tr -c '[:print:]\n' '?'; }
  $ serve() {
  >   hg serve -R repos/one -p $HGPORT -d --pid-file hg.pid -E errors.log --config "vcsreplicator.snapshot-allow=$1"
  >   cat hg.pid >> $DAEMON_PIDS
  > }
  $ stop() { "$PYTHON" "$RUNTESTDIR/killdaemons.py" "$PWD/hg.pid"; }
  $ mkdir repos
  $ hg init repos/one
  recorded event in outbox; it will be sent to the replication log

By default:

  $ serve ''
  $ for command in 'state&firstpush=1' 'changesets&first=0&tip=0&last=9' fingerprint; do
  >   get "?cmd=replication-$command" | grep -o '{"error[^}]*}'
  > done
  {"error": "Unavailable", "message": "a client at $LOCALIP may not copy this repository: add it to [vcsreplicator] snapshot-allow there"}
  {"error": "Unavailable", "message": "a client at $LOCALIP may not copy this repository: add it to [vcsreplicator] snapshot-allow there"}
  {"error": "Unavailable", "message": "a client at $LOCALIP may not copy this repository: add it to [vcsreplicator] snapshot-allow there"}
  $ get '?cmd=capabilities' | grep -c replication
  0
  [1]
  $ stop

A network may be named, or every client. The address of a client behind a proxy is the proxy's, so it does not count.

  $ serve '10.0.0.0/8, stranger'
  $ get '?cmd=replication-state&firstpush=' | grep -o '{"error[^}]*}'
  {"error": "Unavailable", "message": "a client at $LOCALIP may not copy this repository: add it to [vcsreplicator] snapshot-allow there"}
  $ stop
  $ serve '127.0.0.0/8'
  $ get '?cmd=replication-state&firstpush=' | grep -o '"path": "[^"]*"'
  "path": "one"
  $ get '?cmd=replication-state&firstpush=' --requestheader 'X-Forwarded-For=192.0.2.7' | grep -o '{"error[^}]*}'
  {"error": "Unavailable", "message": "this client may not copy this repository: add it to [vcsreplicator] snapshot-allow there"}
  $ stop
  $ serve '*'
  $ get '?cmd=replication-state&firstpush=' --requestheader 'X-Forwarded-For=192.0.2.7' | grep -o '"path": "[^"]*"'
  "path": "one"

A malformed argument is named.

  $ get '?cmd=replication-state&firstpush=one' | grep -o '{"error[^}]*}'
  {"error": "Unavailable", "message": "not an argument: invalid literal for int() with base 10: b'one'"}
  $ get '?cmd=replication-changesets&first=7&tip=0&last=9' | grep -o '{"error[^}]*}'
  {"error": "Diverged", "message": "the master's changeset number 7 is not 0"}
  $ stop

Over SSH the user counts.

  $ cat > ask.py << EOF
  > import sys
  > from mercurial import ui
  > from pushlog.versions import initialize
  > from hgext.vcsreplicator.words.errors import Unavailable
  > from hgext.vcsreplicator.hg.replica import snapshot
  > initialize()
  > try:
  >     print(snapshot.master_newest_event(ui.ui.load(), sys.argv[1]).path)
  > except Unavailable as error:
  >     print(error)
  > EOF
  $ cat >> "$HGRCPATH" << EOF
  > [ui]
  > ssh = "$PYTHON" "$RUNTESTDIR/dummyssh"
  > EOF
  $ USER=replica "$PYTHON" ask.py ssh://user@dummy/repos/one
  user replica may not copy this repository: add it to [vcsreplicator] snapshot-allow there
  $ printf '[vcsreplicator]\nsnapshot-allow = replica\n' > repos/one/.hg/hgrc
  $ USER=replica "$PYTHON" ask.py ssh://user@dummy/repos/one
  one
  $ USER=stranger "$PYTHON" ask.py ssh://user@dummy/repos/one
  user stranger may not copy this repository: add it to [vcsreplicator] snapshot-allow there
  $ USER=replica REMOTE_USER=stranger "$PYTHON" ask.py ssh://user@dummy/repos/one
  user stranger may not copy this repository: add it to [vcsreplicator] snapshot-allow there
  $ cat errors.log

A mirror offers itself to no client, though it has the master's settings.

  $ stop
  $ hg serve -R repos/one -p $HGPORT -d --pid-file hg.pid -E errors.log \
  >   --config vcsreplicator.role=mirror --config 'vcsreplicator.snapshot-allow=*'
  $ cat hg.pid >> $DAEMON_PIDS
  $ for command in 'state&firstpush=1' 'changesets&first=0&tip=0&last=9' fingerprint; do
  >   get "?cmd=replication-$command" | tail -1
  > done
  a mirror does not answer the command replication-state
  a mirror does not answer the command replication-changesets
  a mirror does not answer the command replication-fingerprint
