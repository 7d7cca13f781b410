The pushlog of a mirror shows the pushes of what is released, on its pages and over the wire.

  $ cat >> "$HGRCPATH" << EOF
  > [extensions]
  > *:required = yes
  > pushlog =
  > [web]
  > server-header = no
  > [ui]
  > ssh = "$PYTHON" "$RUNTESTDIR/dummyssh"
  > EOF
  $ release() { "$PYTHON" "$TESTDIR/release.py" "$@"; }
  $ get() { "$PYTHON" "$RUNTESTDIR/get-with-headers.py" localhost:$HGPORT "$@"; }
  $ hg init repo
  $ hg clone --quiet repo client; cd client
  $ for i in 1 2 3; do echo $i > file; hg commit --quiet --addremove -m "change $i" -d "$i 0"; hg push --quiet; done
  recorded push in pushlog
  recorded push in pushlog
  recorded push in pushlog
  $ cd ..
  $ cat >> "$HGRCPATH" << EOF
  > [extensions]
  > *:required = yes
  > vcsreplicator =
  > [vcsreplicator]
  > role = mirror
  > EOF
  $ hg serve -R repo -p $HGPORT -d --pid-file hg.pid -E errors.log
  $ cat hg.pid >> $DAEMON_PIDS
  $ ids() { get "$1" | grep -o '"[0-9]*": {' | tr -d '\n'; }

Nothing is released, one, two, all three.

  $ get 'json-pushes?version=2'
  200 Script output follows
  
  {
  "lastpushid": 0,
  "pushes": {}
  } (no-eol)
  $ release repo 1 1 1
  $ get 'json-pushes?version=2' | grep lastpushid; ids json-pushes
  "lastpushid": 1,
  "1": { (no-eol)
  $ release repo 2 2 2
  $ get 'json-pushes?version=2' | grep lastpushid; ids json-pushes
  "lastpushid": 2,
  "1": {"2": { (no-eol)
  $ ids 'json-pushes?startID=1&endID=3'; get atom-pushlog | grep -c '<entry>'; get pushloghtml | grep -c 'id[123]"'
  "2": {2
  2
  $ get '?cmd=pushlog&firstpush=1' | cut -d ' ' -f 1
  200
  
  1
  1
  2
  $ get '?cmd=pushlog-stream&firstpush=1' | cut -d ' ' -f 1
  200
  
  1
  2
  ok

A push that is not released is unknown to every kind of request.

  $ unreleased=$(hg log -R repo -r 2 -T '{node}')
  $ get "json-pushes?changeset=$unreleased"
  404 Not Found
  
  {
  "error": "unknown revision '7e112ebf5c22414aa98cd568acce6ad8f3014ae7'"
  } (no-eol)
  [1]
  $ get "json-pushes?tochange=$unreleased"
  200 Script output follows
  
  {"1": {"changesets": ["50c7b02cdffc584a154c8183a7f5135b6118ce4f"], "date": *, "git_changesets": [null], "user": "tester"}, "2": {"changesets": ["b5da36d94b5eb11f62a3a8599bb8aae7087fa79a"], "date": *, "git_changesets": [null], "user": "tester"}} (no-eol) (glob)
  $ get 'json-pushes?user=tester&tipsonly=1' | grep -c changesets
  1
  $ get "json-rev/$unreleased" | head -3
  404 Not Found
  
  {

Clones take along what is shown, and the rest with a later pull.

  $ hg clone --quiet ssh://user@dummy/repo copy
  $ hg -R copy log -T '{rev} {pushid}\n' --config extensions.vcsreplicator=!
  1 2
  0 1
  $ release repo 3 3 3
  $ hg -R copy pull --quiet
  $ hg -R copy log -T '{rev} {pushid}\n' --config extensions.vcsreplicator=!
  2 3
  1 2
  0 1
  $ get 'json-pushes?version=2' | grep lastpushid; ids json-pushes
  "lastpushid": 3,
  "1": {"2": {"3": { (no-eol)

Answers say which release they are of. A request may wait for a push: it is answered once that is released.

  $ release repo 2 2 2
  $ get --headeronly json-pushes x-vcsreplicator-event x-vcsreplicator-pushid
  200 Script output follows
  x-vcsreplicator-event: 2
  x-vcsreplicator-pushid: 2
  $ etag=$(get --headeronly json-pushes etag | sed -n 's/^etag: //p')
  $ get json-pushes --requestheader "If-None-Match=$etag" | sed -n 1p
  304 Not Modified
  $ get 'json-pushes?version=2&wait=3' > waited.txt & waiting=$!
  $ get 'json-pushes?version=2' | grep lastpushid
  "lastpushid": 2,
  $ hg -R copy pull ssh://user@dummy/repo | grep -v '^pulling'
  searching for changes
  no changes found
  this mirror is behind: it serves pushes up to 2, the newest here is 3
  added 0 pushes
  $ release repo 3 3 3
  $ wait $waiting; grep lastpushid waited.txt
  "lastpushid": 3,
  $ hg -R copy pull ssh://user@dummy/repo | grep -v '^pulling'
  searching for changes
  no changes found
  added 0 pushes

With a watermark that does not fit the changelog, the pushlog shows nothing, answers name no release, and no push is there yet.

  $ cp repo/.hg/replicated-watermark good
  $ sed 's/ [0-9a-f]\{40\} / 1111111111111111111111111111111111111111 /' good > repo/.hg/replicated-watermark
  $ touch -d '1 hour ago' repo/.hg/replicated-watermark
  $ get 'json-pushes?version=2&startID=0'
  200 Script output follows
  
  {
  "lastpushid": 0,
  "pushes": {}
  } (no-eol)
  $ get --headeronly json-pushes x-vcsreplicator-event x-vcsreplicator-pushid
  200 Script output follows
  $ get '?cmd=pushlog&firstpush=1'
  200 Script output follows
  
  1 (no-eol)
  $ get '?cmd=capabilities' | grep -o 'pushlog-last[^ ]*'
  pushlog-last=0
  $ get 'json-pushes?version=2&wait=3' > waited.txt & waiting=$!
  $ get 'json-pushes?version=2' | grep lastpushid
  "lastpushid": 0,
  $ cp good repo/.hg/replicated-watermark
  $ wait $waiting; grep lastpushid waited.txt
  "lastpushid": 3,

A hidden changeset is named as on the master, apart from the others, once it is released.

  $ printf '[experimental]\nevolution = all\n' >> "$HGRCPATH"
  $ plain() { hg --config extensions.vcsreplicator=! "$@"; }
  $ plain -R repo phase --draft --force 2; plain -R repo debugobsolete "$unreleased"
  1 new obsolescence markers
  obsoleted 1 changesets
  $ plain serve -R repo -p $HGPORT1 -d --pid-file master.pid -E errors.log
  $ cat master.pid >> $DAEMON_PIDS
  $ "$PYTHON" "$RUNTESTDIR/get-with-headers.py" localhost:$HGPORT1 'json-pushes?version=2&full=1' > master.txt
  $ get 'json-pushes?version=2&full=1' | diff master.txt -
  $ grep -c '"desc": "change 3"' master.txt; get 'json-pushes?version=2' | grep -o '"obsoletechangesets.*]'
  1
  "obsoletechangesets": ["7e112ebf5c22414aa98cd568acce6ad8f3014ae7"]
  $ release repo 2 2 2
  $ get 'json-pushes?version=2&full=1' | grep -o '"desc": "[a-z0-9 ]*"'
  "desc": "change 1"
  "desc": "change 2"
  $ cat errors.log
