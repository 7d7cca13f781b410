A branch has one open head, or the push is refused.

  $ hg init server
  $ cat >> server/.hg/hgrc << EOF
  > [hooks]
  > pretxnclose.heads = python:hooks.heads.one_per_branch
  > EOF
  $ hg clone --quiet server client; cd client
  $ echo 0 > base; hg commit --quiet --addremove -m base -d '0 0'; hg push --quiet
  $ echo a > a; hg commit --quiet --addremove -m a -d '1 0'; hg push --quiet
  $ hg update --quiet 0; echo b > b; hg commit --quiet --addremove -m b -d '2 0'
  $ hg push --force
  pushing to $TESTTMP/server
  searching for changes
  adding changesets
  adding manifests
  adding file changes
  branch "default" would have 2 heads: 639d0c19b50d, 13c2518338db
  (pull and merge or rebase, then push again)
  transaction abort!
  rollback completed
  abort: pretxnclose.heads hook failed
  [40]

A head is one of its branch, though another branch goes on from it. A merge is the way out.

  $ hg branch --quiet feature; echo c > c; hg commit --quiet --addremove -m c -d '3 0'
  $ hg push --new-branch --force -r tip
  pushing to $TESTTMP/server
  searching for changes
  adding changesets
  adding manifests
  adding file changes
  branch "default" would have 2 heads: 639d0c19b50d, 13c2518338db
  (pull and merge or rebase, then push again)
  transaction abort!
  rollback completed
  abort: pretxnclose.heads hook failed
  [40]
  $ hg update --quiet 2; hg merge --quiet -r 1; hg commit -m merge -d '4 0'
  $ hg push --new-branch
  pushing to $TESTTMP/server
  searching for changes
  adding changesets
  adding manifests
  adding file changes
  added 3 changesets with 2 changes to 2 files (+1 heads)

So is closing one of the heads.

  $ hg update --quiet 0; echo d > d; hg commit --quiet --addremove -m d -d '5 0'; hg commit --quiet --close-branch -m close -d '6 0'
  $ hg push --force --quiet

The rule can be asked of some branches only.

  $ cat >> ../server/.hg/hgrc << EOF
  > [one-head]
  > branches = stable, feature
  > EOF
  $ hg update --quiet 0; echo e > e; hg commit --quiet --addremove -m e -d '7 0'; hg push --force --quiet
  $ hg update --quiet 2; hg branch --quiet --force feature; echo f > f; hg commit --quiet --addremove -m f -d '8 0'; hg push --force
  pushing to $TESTTMP/server
  searching for changes
  adding changesets
  adding manifests
  adding file changes
  branch "feature" would have 2 heads: 0707c3eb71d6, 9e2b812ee182
  (pull and merge or rebase, then push again)
  transaction abort!
  rollback completed
  abort: pretxnclose.heads hook failed
  [40]

A branch is known by its name in every locale of the server.

  $ printf '[one-head]\nbranches = gr\303\266\303\237e\n' >> ../server/.hg/hgrc
  $ hg update --quiet 0; hg --encoding utf-8 branch --quiet "`printf 'gr\303\266\303\237e'`"
  $ echo g > g; hg commit --quiet --addremove -m g -d '9 0'; hg push --quiet --new-branch --force -r .
  $ hg update --quiet '.^'; hg --encoding utf-8 branch --quiet --force "`printf 'gr\303\266\303\237e'`"
  $ echo h > h; hg commit --quiet --addremove -m h -d '10 0'
  $ for name in ascii utf-8; do hg --encoding $name push --force -r . 2>&1 | grep 'would have' | cut -d : -f 1; done
  branch "gr??e" would have 2 heads
  branch "gr\xc3\xb6\xc3\x9fe" would have 2 heads (esc)

Pushes without changesets are not asked.

  $ hg bookmark -r 0 first; hg push --bookmark first -r 0
  pushing to $TESTTMP/server
  searching for changes
  no changes found
  exporting bookmark first
  [1]
