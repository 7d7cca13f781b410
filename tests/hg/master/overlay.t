A bundle or a union laid over a replicated repository is read-only: a change would become an event of the repository beneath.

  $ . "$TESTDIR/master.sh"
  $ hgm init repos/one
  (recorded repository creation in replication log in *s) (glob)
  $ hg clone -q ssh://user@dummy/$TESTTMP/repos/one clone
  $ cd clone
  $ echo a > a
  $ hg commit -qAm a
  $ hg push -q
  $ echo b > a
  $ hg commit -qm b
  $ hg phase -d -f 0
  $ hg bundle -q -r tip --base 0 ../b.hg
  $ cd ../repos/one
  $ ls -A .hg/store > $TESTTMP/before

Reading works as ever.

  $ hgm -R ../../b.hg log -T '{rev}:{desc} {phase}\n'
  1:b draft
  0:a public
  $ hgm -R union:.+../../clone log -T '{rev}:{desc}\n'
  1:b
  0:a
  $ hgm incoming ../../b.hg -T '{desc}\n'
  comparing with ../../b.hg
  searching for changes
  b

Changes are refused, and no event is written.

  $ hgm -R ../../b.hg bookmark x
  abort: bundle:../../b.hg shows a repository together with further changesets: it is read-only
  (pull or unbundle into the repository itself)
  [255]
  $ hgm -R ../../b.hg phase -d -f 0
  abort: bundle:../../b.hg shows a repository together with further changesets: it is read-only
  (pull or unbundle into the repository itself)
  [255]
  $ hgm -R union:.+../../clone bookmark x
  abort: union:.+../../clone shows a repository together with further changesets: it is read-only
  (pull or unbundle into the repository itself)
  [255]
  $ hgm -R ../../b.hg debugobsolete aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
  abort: bundle:../../b.hg shows a repository together with further changesets: it is read-only
  (pull or unbundle into the repository itself)
  [255]
  $ hgm -R ../../b.hg strip -q --no-backup 0
  abort: bundle:../../b.hg shows a repository together with further changesets: it is read-only
  (pull or unbundle into the repository itself)
  [255]
  $ hgm -R ../../b.hg replicatesync
  abort: bundle:../../b.hg shows a repository together with further changesets: it is read-only
  (pull or unbundle into the repository itself)
  [255]
  $ hgm -R ../../b.hg replicatedelete --yes
  abort: bundle:../../b.hg shows a repository together with further changesets: it is read-only
  (pull or unbundle into the repository itself)
  [255]
  $ ls -A .hg/store | diff $TESTTMP/before -
  $ events
  one 1 created origin=init after=0
  one 2 changed +1 heads+1 push=1 by tester (inline) after=1
  $ hgm pull -q ../../b.hg
  $ events
  one 1 created origin=init after=0
  one 2 changed +1 heads+1 push=1 by tester (inline) after=1
  one 3 changed +1 heads+1 phase1:1 (inline) after=2
