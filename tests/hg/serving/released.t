A mirror holds more than it may show. What the watermark names is there for every client; what comes after it does not exist.

  $ cat >> "$HGRCPATH" << EOF
  > [extensions]
  > *:required = yes
  > pushlog =
  > [web]
  > server-header = no
  > EOF
  $ release() { "$PYTHON" "$TESTDIR/release.py" "$@"; }
  $ get() { "$PYTHON" "$RUNTESTDIR/get-with-headers.py" localhost:$HGPORT "$@"; }
  $ revisions() { hg log -R "$1" -T '{rev} {desc}\n'; }

Five changesets on two branches, and bookmarks, arrive on a mirror. Nothing is released yet.

  $ hg init repo
  $ cd repo
  $ for i in 0 1 2 3 4; do
  >   test $i = 3 && hg branch --quiet later
  >   echo $i > file; hg commit --quiet --addremove -m "change $i" -d "$i 0"
  > done
  $ hg phase --public tip
  $ hg bookmark -r 1 steady
  $ hg bookmark -r 0 moving
  $ hg log -T '{node|short} {desc}\n'
  a9e79999fa67 change 4
  5a253250457e change 3
  ed51d10d1b1e change 2
  2484820b67bb change 1
  90a8f74e9175 change 0
  $ cd ..
  $ cp "$HGRCPATH" plain.hgrc
  $ cat >> "$HGRCPATH" << EOF
  > [extensions]
  > *:required = yes
  > vcsreplicator =
  > [vcsreplicator]
  > role = mirror
  > EOF

Without a watermark a mirror shows nothing, by any way in.

  $ unreleased=$(hg log -R repo -r 3 -T '{node}')
  $ hg clone --quiet repo by-path; revisions by-path
  $ hg clone --quiet ssh://user@dummy/repo by-ssh --config ui.ssh="\"$PYTHON\" \"$RUNTESTDIR/dummyssh\""; revisions by-ssh
  $ hg serve -R repo -p $HGPORT -d --pid-file hg.pid -E errors.log
  $ cat hg.pid >> $DAEMON_PIDS
  $ hg clone --quiet http://localhost:$HGPORT/ by-http; revisions by-http
  $ get 'json-tags' | grep -c '"tag"'
  0
  [1]
  $ get --headeronly 'rev/'$(hg log -R repo -r 0 -T '{node}')
  404 Not Found
  [1]

Three changesets are released: a running web server shows them at its next request. The bookmark "moving" is on its way to the fifth;
it is shown where it was before.

  $ release repo 2
  $ HGRCPATH="$TESTTMP/plain.hgrc" hg bookmark -R repo --force -r 4 moving
  $ release repo 3
  $ get '?cmd=heads'
  200 Script output follows
  
  ed51d10d1b1e564a7d57d664e19b47e88961757b
  $ get 'json-log' | grep '"desc"'
  "desc": "change 2",
  "desc": "change 1",
  "desc": "change 0",
  $ get 'json-branches' | grep '"branch"'
  "branch": "default",
  $ get 'json-bookmarks' | grep '"bookmark"'
  "bookmark": "steady",
  "bookmark": "moving",
  $ get --headeronly rev/$unreleased
  404 Not Found
  [1]
  $ get 'raw-file/tip/file'
  200 Script output follows
  
  2
  $ get "?cmd=lookup&key=$unreleased"
  200 Script output follows
  
  0 unknown revision '5a253250457ef5a730fec67016b798b4d5ba80d1'
  $ get "?cmd=known&nodes=$unreleased"
  200 Script output follows
  
  0 (no-eol)
  $ get '?cmd=listkeys&namespace=bookmarks'
  200 Script output follows
  
  moving	90a8f74e9175e66a3234662bcd3974bb6f5c79ff
  steady	2484820b67bb0af565333fb0ab73f6babba7d4c0 (no-eol)
  $ hg debugpushkey ssh://user@dummy/repo bookmarks --config ui.ssh="\"$PYTHON\" \"$RUNTESTDIR/dummyssh\""
  moving	90a8f74e9175e66a3234662bcd3974bb6f5c79ff
  steady	2484820b67bb0af565333fb0ab73f6babba7d4c0
  $ hg debugpushkey repo bookmarks
  moving	90a8f74e9175e66a3234662bcd3974bb6f5c79ff
  steady	2484820b67bb0af565333fb0ab73f6babba7d4c0
  $ get '?cmd=branchmap'
  200 Script output follows
  
  default ed51d10d1b1e564a7d57d664e19b47e88961757b (no-eol)
  $ hg clone --quiet http://localhost:$HGPORT/ by-http-2; revisions by-http-2
  2 change 2
  1 change 1
  0 change 0
  $ hg clone --quiet ssh://user@dummy/repo by-ssh-2 --config ui.ssh="\"$PYTHON\" \"$RUNTESTDIR/dummyssh\""; revisions by-ssh-2
  2 change 2
  1 change 1
  0 change 0
  $ hg clone --quiet repo by-path-2; revisions by-path-2
  2 change 2
  1 change 1
  0 change 0
  $ hg clone --quiet --pull repo by-pull; revisions by-pull
  2 change 2
  1 change 1
  0 change 0
  $ hg incoming -R by-pull repo
  comparing with repo
  searching for changes
  no changes found
  [1]
  $ hg pull -R by-pull -r $unreleased http://localhost:$HGPORT/
  pulling from http://localhost:$HGPORT/
  abort: unknown revision '5a253250457ef5a730fec67016b798b4d5ba80d1'
  [255]

A stream clone copies files, in which nothing can be hidden. It is not offered, and refused to a client that asks nevertheless.

  $ get '?cmd=capabilities' | grep -o 'stream[^ ]*'
  stream%3Dv2
  stream
  $ get '?cmd=stream_out'
  200 Script output follows
  
  1
  $ hg clone --stream http://localhost:$HGPORT/ by-stream; revisions by-stream
  warning: stream clone requested but server has them disabled
  requesting all changes
  adding changesets
  adding manifests
  adding file changes
  added 0 pushes
  added 3 changesets with 3 changes to 1 files
  new changesets 90a8f74e9175:ed51d10d1b1e
  updating to branch default
  1 files updated, 0 files merged, 0 files removed, 0 files unresolved
  2 change 2
  1 change 1
  0 change 0

So it is with clone bundles, which are files too.

  $ echo 'https://hg.example/full.hg BUNDLESPEC=zstd-v2' > repo/.hg/clonebundles.manifest
  $ get '?cmd=clonebundles'
  200 Script output follows
  
  $ get '?cmd=clonebundles_manifest'
  200 Script output follows
  

The fourth is released, then the fifth. The bookmark moves with the fifth.

  $ release repo 4
  $ get '?cmd=heads'
  200 Script output follows
  
  5a253250457ef5a730fec67016b798b4d5ba80d1
  $ get '?cmd=listkeys&namespace=bookmarks'
  200 Script output follows
  
  moving	90a8f74e9175e66a3234662bcd3974bb6f5c79ff
  steady	2484820b67bb0af565333fb0ab73f6babba7d4c0 (no-eol)
  $ get 'json-branches' | grep '"branch"'
  "branch": "later",
  "branch": "default",
  $ release repo 5
  $ get '?cmd=heads'
  200 Script output follows
  
  a9e79999fa673fe7495575ee3e7782de3bf081f3
  $ get '?cmd=listkeys&namespace=bookmarks'
  200 Script output follows
  
  moving	a9e79999fa673fe7495575ee3e7782de3bf081f3
  steady	2484820b67bb0af565333fb0ab73f6babba7d4c0 (no-eol)
  $ get '?cmd=capabilities' | grep -o 'stream [^ ]*' | wc -l
  1
  $ get '?cmd=clonebundles'
  200 Script output follows
  
  https://hg.example/full.hg BUNDLESPEC=zstd-v2
   (?)
  $ rm repo/.hg/clonebundles.manifest
  $ hg clone --stream --quiet http://localhost:$HGPORT/ by-stream-2; revisions by-stream-2 | head -1
  4 change 4

Many releases within a second: the web server misses none, and the answer's tag changes with each, so no browser keeps an old page. The
file's time goes on by two seconds at each, independently of the clock.

  $ touch -d @2000000000 repo/.hg/replicated-watermark
  $ for i in 1 2 3 4 5; do
  >   release repo $i
  >   "$PYTHON" -c 'import os; print(int(os.stat("repo/.hg/replicated-watermark").st_mtime))'
  >   get --headeronly 'json-log' etag > tag.$i
  >   get 'json-log' | grep -c '"desc"'
  > done
  2000000002
  1
  2000000004
  2
  2000000006
  3
  2000000008
  4
  2000000010
  5
  $ cat tag.* | grep -i etag | sort -u | wc -l
  5

Drafts of the unreleased part are not named to clients of a non-publishing mirror either.

  $ HGRCPATH="$TESTTMP/plain.hgrc" hg phase -R repo --force --draft 3
  $ cat >> repo/.hg/hgrc << EOF
  > [phases]
  > publish = no
  > EOF
  $ release repo 3 
  $ get '?cmd=listkeys&namespace=phases'
  200 Script output follows
  
  $ release repo 5
  $ get '?cmd=listkeys&namespace=phases'
  200 Script output follows
  
  5a253250457ef5a730fec67016b798b4d5ba80d1	1 (no-eol)

A mirror refuses pushes, over the wire before it reads any of them.

  $ cd by-path
  $ hg pull --quiet; hg update --quiet tip; echo mine > file; hg commit -m mine
  $ hg push
  pushing to $TESTTMP/repo
  searching for changes
  abort: this is a read-only mirror; push to the master instead
  [255]
  $ hg push ssh://user@dummy/repo --config ui.ssh="\"$PYTHON\" \"$RUNTESTDIR/dummyssh\""
  pushing to ssh://user@dummy/repo
  searching for changes
  remote: this is a read-only mirror; push to the master instead
  remote: 
  remote: -
  abort: remote error
  (check previous remote output)
  [100]
  $ hg push http://localhost:$HGPORT/
  pushing to http://localhost:$HGPORT/
  searching for changes
  abort: HTTP Error 403: this is a read-only mirror; push to the master instead
  [100]
  $ hg bookmark -r 0 mine; hg push -B mine
  pushing to $TESTTMP/repo
  searching for changes
  no changes found
  abort: this is a read-only mirror; push to the master instead
  [255]
  $ cd ..
  $ cat errors.log
