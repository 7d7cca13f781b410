A mirror answers every request as if it held nothing but what is released.

  $ cat >> "$HGRCPATH" << EOF
  > [extensions]
  > *:required = yes
  > pushlog =
  > [web]
  > name = repo
  > server-header = no
  > allow-archive = zip
  > EOF
  $ release() { "$PYTHON" "$TESTDIR/release.py" "$@"; }
  $ commit() { hg commit --quiet --addremove --user "$1" -m "$2" -d "$3"; hg push --quiet --new-branch; }

Three changesets are released.

  $ hg init mirror
  $ hg clone --quiet mirror client; cd client
  $ mkdir folder; echo 0 > file; echo 0 > both; echo 0 > folder/inner; commit ann 'change 0' '0 0'
  recorded push in pushlog
  $ echo 1 >> both; commit ann 'change 1' '1 0'
  recorded push in pushlog
  $ hg tag -r 0 v1 -d '2 0'; hg push --quiet
  recorded push in pushlog
  $ hg bookmark -r 1 steady -R ../mirror
  $ cp -R ../mirror ../released

Three more come to one mirror, with users, names, files, tags and branches of their own.

  $ hg branch --quiet latebranch; echo late > late; echo late >> both; echo late > folder/inner
  $ hg commit --quiet --addremove --user lateuser -m 'late change' -d '2000000000 0'
  $ hg push --quiet --new-branch
  recorded push in pushlog
  $ hg tag -r 1 latetag --user lateuser -d '2000000000 0'; hg push --quiet
  recorded push in pushlog
  $ hg tag -r 3 latertag --user lateuser -d '2000000000 0'; hg push --quiet
  recorded push in pushlog
  $ hg bookmark -r 4 -R ../mirror latemark
  $ cd ..
  $ cat >> "$HGRCPATH" << EOF
  > [extensions]
  > *:required = yes
  > vcsreplicator =
  > [vcsreplicator]
  > role = mirror
  > EOF
  $ release released 3 1 3
  $ release mirror 3 1 3
  $ cp released/.hg/replicated-bookmarks mirror/.hg/
  $ nodes=$(hg -R client log -r 3 -T '{node} ')
  $ files=$(hg -R client manifest --debug -r 4 | grep -v ' file$' | head -2 | cut -c 1-40)
  $ "$PYTHON" "$TESTDIR/answers.py" mirror released $nodes $files 3 latebranch latetag latemark
  757 questions

Before the first release it answers as an empty one.

  $ hg init empty
  $ release empty 0 1 0
  $ release mirror 0 1 0; rm mirror/.hg/replicated-bookmarks
  $ "$PYTHON" "$TESTDIR/answers.py" mirror empty $nodes 3 latebranch latetag
  554 questions
