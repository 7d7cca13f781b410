A push that brings a format which is not replicated is refused, and the repository goes on as before.

  $ . "$TESTDIR/master.sh"
  $ requirements() {
  >   sort repos/$1/.hg/requires repos/$1/.hg/store/requires | grep -E 'tree|lfs|large'
  > }
  $ hg init plain
  $ echo a > plain/a
  $ hg -R plain commit -qAm a plain/a

Tree manifests, which Mercurial would let a push give to an empty repository.

  $ hgm init -q repos/trees
  $ hg init trees --config experimental.treemanifest=yes
  $ echo t > trees/t
  $ hg -R trees commit -qAm t trees/t
  $ hg -R trees push ssh://user@dummy/$TESTTMP/repos/trees
  pushing to ssh://user@dummy/$TESTTMP/repos/trees
  searching for changes
  remote: this repository would use tree manifests, which is not replicated
  remote: (convert it, or keep it outside [vcsreplicator-roots])
  abort: push failed on remote
  [100]
  $ requirements trees
  [1]
  $ hg -R plain push -q ssh://user@dummy/$TESTTMP/repos/trees
  $ hgm init -q repos/pulled
  $ hgm -R repos/pulled pull -q trees
  abort: this repository would use tree manifests, which is not replicated
  (convert it, or keep it outside [vcsreplicator-roots])
  [255]

LFS, whose own hook writes it into the repository's format, past the journal.

  $ hgm init -q repos/lfs
  $ hg -R plain push -q ssh://user@dummy/$TESTTMP/repos/lfs
  $ cp master.hgrc before.hgrc
  $ printf '[extensions]\nlfs =\n[lfs]\nusercache = %s/cache\n' $TESTTMP >> master.hgrc
  $ hg clone -q plain lfs
  $ cat >> lfs/.hg/hgrc <<E
  > [extensions]
  > lfs =
  > [lfs]
  > track = all()
  > url = file://$TESTTMP/lfs-store
  > usercache = $TESTTMP/cache
  > E
  $ echo l > lfs/l
  $ hg -R lfs commit -qAm l lfs/l
  $ hg -R lfs push -q ssh://user@dummy/$TESTTMP/repos/lfs
  remote: this repository would use LFS, which is not replicated
  remote: (convert it, or keep it outside [vcsreplicator-roots])
  abort: push failed on remote
  [100]
  $ requirements lfs
  [1]
  $ hg -R lfs export -q . > l.diff
  $ hgm -R repos/lfs --config 'lfs.track=all()' import -q --bypass l.diff
  transaction abort!
  rollback completed
  abort: this repository would use LFS, which is not replicated
  (convert it, or keep it outside [vcsreplicator-roots])
  [255]
  $ requirements lfs
  [1]
  $ echo b > plain/b
  $ hg -R plain commit -qAm b plain/b
  $ hg -R plain push -q ssh://user@dummy/$TESTTMP/repos/lfs
  $ cp before.hgrc master.hgrc

Large files, whose content does not come with the push.

  $ hgm init -q repos/large
  $ hg -R plain push -q ssh://user@dummy/$TESTTMP/repos/large
  $ printf '[extensions]\nlargefiles =\n[largefiles]\nusercache = %s/cache\n' $TESTTMP >> master.hgrc
  $ hg clone -q plain large
  $ cp master.hgrc client.hgrc
  $ printf '[extensions]\nlargefiles =\n[largefiles]\nusercache = %s/cache\n' $TESTTMP >> large/.hg/hgrc
  $ echo large > large/big
  $ hg --cwd large add -q --large big
  $ hg -R large commit -qm big
  $ hg -R large push -q ssh://user@dummy/$TESTTMP/repos/large
  remote: this repository would use largefiles, which is not replicated
  remote: (convert it, or keep it outside [vcsreplicator-roots])
  abort: push failed on remote
  [100]
  $ requirements large
  [1]
  $ hg -R large export -q . > big.diff
  $ hgm -R repos/large import -q --bypass big.diff
  transaction abort!
  rollback completed
  abort: this repository would use largefiles, which is not replicated
  (convert it, or keep it outside [vcsreplicator-roots])
  [255]
  $ echo d > plain/d
  $ hg -R plain commit -qAm d plain/d
  $ hg -R plain push -q ssh://user@dummy/$TESTTMP/repos/large
  $ cp before.hgrc master.hgrc

A strip takes away what it keeps, and adds it again: that is not new, though the extension came later.

  $ hgm init -q repos/strip
  $ hg clone -q plain standins
  $ echo gone > standins/gone
  $ hg -R standins commit -qAm gone standins/gone
  $ hg -R standins update -q 0
  $ mkdir standins/.hglf
  $ echo 0 > standins/.hglf/x
  $ hg -R standins commit -qAm standin standins/.hglf/x
  $ hg -R standins push -qf ssh://user@dummy/$TESTTMP/repos/strip
  $ hgm -R repos/strip --config extensions.strip= --config extensions.largefiles= strip -q --no-backup -r 'desc(gone)'
  $ hgm -R repos/strip --config extensions.largefiles= log -T '{desc}\n' -r 'desc(standin)'
  standin

A repository without a store, as Mercurial made them before 0.9.2: the relay would not find its events.

  $ hgm init repos/old --config format.usestore=no
  abort: this repository would have a format from before Mercurial 0.9.2, which is not replicated
  (re-create it with 'hg clone --pull', or keep it outside [vcsreplicator-roots])
  [255]

A format of which Mercurial makes bundles without content.

  $ hgm init repos/copies --config format.exp-use-copies-side-data-changeset=yes \
  > --config format.exp-use-changelog-v2=enable-unstable-format-and-corrupt-my-data
  abort: this repository would use copies beside changesets, which is not replicated
  (convert it, or keep it outside [vcsreplicator-roots])
  [255]
