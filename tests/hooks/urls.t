After a push the pusher reads where to look at it.

  $ mkdir repos
  $ hg init repos/project
  $ cat >> repos/project/.hg/hgrc << EOF
  > [hooks]
  > changegroup.urls = python:hooks.urls.show
  > [push-urls]
  > base = https://hg.example/public/
  > root = $TESTTMP/repos
  > EOF
  $ hg clone --quiet repos/project client; cd client
  $ echo 0 > file; hg commit --quiet --addremove -m 0 -d '0 0'; hg push
  pushing to $TESTTMP/repos/project
  searching for changes
  adding changesets
  adding manifests
  adding file changes
  added 1 changesets with 1 changes to 1 files
  
  View your change here:
    https://hg.example/public/project/rev/08b1860757c2ec82aac053481525ed0f66bef784
  $ for i in 1 2; do echo $i > file; hg commit --quiet -m $i -d "$i 0"; done; hg push
  pushing to $TESTTMP/repos/project
  searching for changes
  adding changesets
  adding manifests
  adding file changes
  added 2 changesets with 2 changes to 1 files
  
  View your changes here:
    https://hg.example/public/project/rev/83e1faddffd852a07845c12eaa38201b4819c3b5
    https://hg.example/public/project/rev/c545bc501a80ac828cf32c117bf4faae56863f92

Beyond ten there is one link: to the push where there is a pushlog, else to the newest.

  $ for i in 1 2 3 4 5 6 7 8 9 10 11; do echo many $i > file; hg commit --quiet -m $i -d "$i 0"; done; hg push | grep -A 2 View
  View your changes here:
    https://hg.example/public/project/rev/811d6e43bd237aed51bedcfd07bc618876a58a4d
  $ for i in 1 2 3 4 5 6 7 8 9 10 11; do echo more $i > file; hg commit --quiet -m $i -d "$i 0"; done
  $ hg push --config extensions.pushlog= | grep -A 2 View
  View your changes here:
    https://hg.example/public/project/pushloghtml?changeset=9977974f73fe3b8b12640f8b7fb1f19388de8492

A repository outside the root, or without configuration, says nothing; nor does a pull on the server.

  $ echo 99 > file; hg commit --quiet -m 99 -d '99 0'
  $ hg -R ../repos/project pull .
  pulling from .
  searching for changes
  adding changesets
  adding manifests
  adding file changes
  added 1 changesets with 1 changes to 1 files
  new changesets 1f50dfa6943e
  (run 'hg update' to get a working copy)
  $ sed -i.old '/^base/d' ../repos/project/.hg/hgrc
  $ echo 100 > file; hg commit --quiet -m 100 -d '100 0'; hg push | grep -c View
  0
  [1]
