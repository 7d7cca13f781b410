Subrepositories are not taken; getting rid of them is.

  $ hg init server
  $ hg clone --quiet server client; cd client
  $ hg init inner; hg init ../server/inner; echo 'inner = inner' > .hgsub; echo x > inner/x; hg -R inner commit --quiet --addremove -m x -d '0 0'
  $ hg commit --quiet --addremove -m 'with a subrepository' -d '0 0'
  $ cat >> ../server/.hg/hgrc << EOF
  > [hooks]
  > pretxnchangegroup.subrepositories = python:hooks.subrepositories.refuse
  > EOF
  $ hg push
  pushing to $TESTTMP/server
  pushing subrepo inner to $TESTTMP/server/inner
  searching for changes
  adding changesets
  adding manifests
  adding file changes
  added 1 changesets with 1 changes to 1 files
  searching for changes
  adding changesets
  adding manifests
  adding file changes
  changeset f20a92b36b1d changes .hgsub: subrepositories are not taken here
  transaction abort!
  rollback completed
  abort: pretxnchangegroup.subrepositories hook failed
  [40]

What was there before the rule can be removed.

  $ mv ../server/.hg/hgrc hgrc.rule
  $ hg unbundle --quiet -R ../server "$(hg bundle --quiet --all ../all.hg; echo ../all.hg)"
  $ mv hgrc.rule ../server/.hg/hgrc
  $ hg remove --quiet .hgsub; hg commit --quiet -m 'without' -d '1 0'
  $ hg push --quiet ../server
  $ hg -R ../server log -T '{rev} {desc}\n'
  1 without
  0 with a subrepository

Nor are they taken in a changeset that does not name them.

  $ python "$TESTDIR/lie.py" . .hgsub 100; hg push --quiet ../server 2>&1 | grep changes
  changeset * changes .hgsub: subrepositories are not taken here (glob)
  $ hg -R ../server log -T '{rev} {desc}\n'
  1 without
  0 with a subrepository
