Only the mirror's service writes into its repositories: not a client by a path, not an operator by hand.

  $ cat >> "$HGRCPATH" << EOF
  > [extensions]
  > strip =
  > [ui]
  > rollback = yes
  > [experimental]
  > evolution = all
  > EOF
  $ hg init repo; cd repo
  $ for i in 0 1 2; do echo $i > file; hg commit -qAm "change $i" -d "$i 0"; done
  $ hg phase --public tip
  $ hg bookmark -r 0 steady
  $ cd ..
  $ hg clone -q repo client; cd client; hg bookmark -r 1 mine; hg bookmark -f -r 1 steady; cd ..; hg -R repo bookmark -r 0 gone
  $ cat > role.hgrc << EOF
  > [extensions]
  > *:required = yes
  > pushlog =
  > vcsreplicator =
  > [vcsreplicator]
  > role = mirror
  > EOF
  $ HGRCPATH="$HGRCPATH:$TESTTMP/role.hgrc" "$PYTHON" "$TESTDIR/release.py" repo 2
  $ cp role.hgrc repo/.hg/hgrc
  $ held() { hg -R repo bookmarks -T '{bookmark} {rev};'; hg -R repo log -T '{phase} {rev};'; hg -R repo debugobsolete; echo; }
  $ held
  gone 0;steady 0;public 2;public 1;public 0;

By a path, in every way that a client can ask.

  $ hg -R client push repo -B mine
  pushing to repo
  searching for changes
  no changes found
  abort: this is a read-only mirror; push to the master instead
  [255]
  $ hg -R client push repo -B mine --config devel.legacy.exchange=bookmarks
  pushing to repo
  searching for changes
  no changes found
  abort: this is a read-only mirror; push to the master instead
  [255]
  $ hg -R client push repo -B steady --config devel.legacy.exchange=bundle1
  pushing to repo
  searching for changes
  no changes found
  abort: this is a read-only mirror; push to the master instead
  [255]
  $ hg -R client push repo -B gone 2>&1 | tail -1
  abort: this is a read-only mirror; push to the master instead
  $ hg debugpushkey repo bookmarks mine '' $(hg -R client log -r 1 -T '{node}')
  abort: this is a read-only mirror; push to the master instead
  [255]
  $ hg debugpushkey repo phases $(hg -R client log -r 1 -T '{node}') 0 1
  abort: this is a read-only mirror; push to the master instead
  [255]
  $ cd client; echo mine > file; hg commit -qm mine; hg phase --secret --force 1; hg phase --draft .
  $ hg push ../repo -r . 2>&1 | tail -1
  abort: this is a read-only mirror; push to the master instead
  $ hg push ../repo -r . --config devel.legacy.exchange=bundle1 2>&1 | tail -1
  abort: this is a read-only mirror; push to the master instead
  $ hg bundle -q --base 2 -r . ../mine.hg
  $ cd ..; held
  gone 0;steady 0;public 2;public 1;public 0;

By hand: one line each, and nothing is written.

  $ cd repo
  $ hg update -q 1; echo by hand > file
  $ hg commit -m 'by hand'
  abort: this is a read-only mirror; push to the master instead
  [255]
  $ hg commit --config vcsreplicator.commits=accept -m 'by hand'
  abort: this is a read-only mirror; push to the master instead
  [255]
  $ for command in 'tag -f x' 'bookmark x' 'bookmark -d steady' 'phase --draft --force tip' 'pull ../client' 'unbundle ../mine.hg' \
  >     "debugobsolete $(hg log -r 2 -T '{node}')" 'strip -f 2' rollback; do
  >   hg $command > said 2>&1 < /dev/null; echo "$? $(grep -c '^abort: ' said) $(tail -1 said)"
  > done
  255 1 abort: this is a read-only mirror; push to the master instead
  255 1 abort: this is a read-only mirror; push to the master instead
  255 1 abort: this is a read-only mirror; push to the master instead
  255 1 abort: this is a read-only mirror; push to the master instead
  255 1 abort: this is a read-only mirror; push to the master instead
  255 1 abort: this is a read-only mirror; push to the master instead
  255 1 abort: this is a read-only mirror; push to the master instead
  255 1 abort: this is a read-only mirror; push to the master instead
  255 1 abort: this is a read-only mirror; push to the master instead
  $ cd ..; held
  gone 0;steady 0;public 2;public 1;public 0;

The same before anything was released.

  $ mv repo/.hg/replicated-watermark kept; touch repo/.hg/store/replicated.log
  $ hg -R repo bookmark -r 1 early
  abort: this is a read-only mirror; push to the master instead
  [255]
  $ mv kept repo/.hg/replicated-watermark; rm repo/.hg/store/replicated.log

What writes nothing works. So does writing into a clone, which is no mirrored repository.

  $ hg -R repo incoming client -q -T '{desc}\n'
  mine
  $ hg -R repo archive -r 0 out
  $ hg -R repo update -qC 0
  $ HGRCPATH="$HGRCPATH:$TESTTMP/role.hgrc" hg clone -q repo own; hg -R own log -T '{desc}\n'
  change 1
  change 0
  $ cd own; echo own > file; HGRCPATH="$HGRCPATH:$TESTTMP/role.hgrc" hg commit -m own
