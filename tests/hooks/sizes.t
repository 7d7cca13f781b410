Files, pushes and histories above the limits are refused, and the pusher reads which file it was.

  $ hg init server
  $ cat >> server/.hg/hgrc << EOF
  > [hooks]
  > pretxnclose.sizes = python:hooks.sizes.check
  > [sizes]
  > file = 1 kb
  > push = 3 kb
  > changesets = 4
  > except = videos/**
  > EOF
  $ hg clone --quiet server client; cd client
  $ bytes() { "$PYTHON" -c 'import sys; sys.stdout.write("x" * int(sys.argv[1]))' $1; }

The limit itself is allowed.

  $ bytes 1024 > exact; hg commit --quiet --addremove -m exact -d '0 0'; hg push --quiet
  $ bytes 1025 > above; hg commit --quiet --addremove -m above -d '1 0'; hg push
  pushing to $TESTTMP/server
  searching for changes
  adding changesets
  adding manifests
  adding file changes
  above in 1728c155b3d3 has 1025 bytes, at most 1024 bytes are taken
  transaction abort!
  rollback completed
  abort: pretxnclose.sizes hook failed
  [40]
  $ hg -R ../server log -T '{desc}\n'
  exact

Removing it in a later changeset does not help: history keeps it. A path may be excepted.

  $ hg remove above; hg commit -m removed -d '2 0'; hg push 2>&1 | grep above
  above in 1728c155b3d3 has 1025 bytes, at most 1024 bytes are taken
  $ hg --config extensions.strip= strip --quiet --no-backup -r 1
  $ mkdir videos; bytes 2000 > videos/intro; hg commit --quiet --addremove -m video -d '3 0'; hg push --quiet

Nor does it help to name a file in one changeset and to have it in another.

  $ python "$TESTDIR/lie.py" . hidden 1025; hg push 2>&1 | grep hidden
  hidden in * has 1025 bytes, at most 1024 bytes are taken (glob)
  $ hg --config extensions.strip= strip --quiet --no-backup -r -2

Nor what stands before a file's content, is shown as censored, or is in no manifest.

  $ for kind in metadata censored unnamed; do
  >   python "$TESTDIR/heavy.py" . $kind $kind 1025; hg push --force 2>&1 | grep taken
  >   hg --config extensions.strip= strip --quiet --no-backup -r tip
  > done
  metadata in * has * bytes, at most 1024 bytes are taken (glob)
  censored in * has * bytes, at most 1024 bytes are taken (glob)
  unnamed in * has 1025 bytes, at most 1024 bytes are taken (glob)

Nor what comes without a changeset, to a new history or to one that the server has.

  $ for path in lone exact; do
  >   python "$TESTDIR/lone-version.py" `hg -R ../server log -r 0 -T '{node}'` $path 1025 > ../lone.hg
  >   hg -R ../server unbundle ../lone.hg 2>&1 | grep taken
  > done
  lone in * has 1025 bytes, at most 1024 bytes are taken (glob)
  exact in * has 1025 bytes, at most 1024 bytes are taken (glob)

Each version of a file counts once in the size of the push.

  $ for i in 1 2 3 4; do bytes 800 > part$i; echo $i >> part$i; done; hg commit --quiet --addremove -m parts -d '4 0'; hg push
  pushing to $TESTTMP/server
  searching for changes
  adding changesets
  adding manifests
  adding file changes
  this push has 3208 bytes, at most 3072 bytes are taken at once
  transaction abort!
  rollback completed
  abort: pretxnclose.sizes hook failed
  [40]
  $ hg --config extensions.strip= strip --quiet --no-backup -r tip
  $ for i in 1 2 3; do bytes 900 > same$i; hg commit --quiet --addremove -m "same $i" -d "$i 0"; done; hg push --quiet

What the server had counts nothing, also when the push turns a file's history from one file into two.

  $ hg init ../grown; cp ../server/.hg/hgrc ../grown/.hg/hgrc; hg clone --quiet ../grown ../grower; cd ../grower
  $ for i in 1 2 3 4 5; do
  >   python -c "import os; open('random', 'wb').write(os.urandom(50000 + $i))"; hg commit --quiet --addremove -m $i -d "$i 0"
  >   : > random; hg commit --quiet -m $i -d "$i 0"
  >   hg push 2>&1 | grep 'this push'; hg push --quiet --config sizes.file=0 --config sizes.push=0
  >   ls ../grown/.hg/store/data | grep 'd$'
  > done
  this push has 50001 bytes, at most 3072 bytes are taken at once
  this push has 50002 bytes, at most 3072 bytes are taken at once
  this push has 50003 bytes, at most 3072 bytes are taken at once
  random.d
  this push has 50004 bytes, at most 3072 bytes are taken at once
  random.d
  this push has 50005 bytes, at most 3072 bytes are taken at once
  random.d
  $ cd ../client

Too many changesets at once:

  $ for i in 1 2 3 4 5; do echo $i > small; hg commit --quiet --addremove -m "small $i" -d "$i 0"; done; hg push
  pushing to $TESTTMP/server
  searching for changes
  adding changesets
  adding manifests
  adding file changes
  this push has 5 changesets, at most 4 are taken at once
  transaction abort!
  rollback completed
  abort: pretxnclose.sizes hook failed
  [40]
  $ hg push --quiet -r -2

So too if they come in two parts of one push.

  $ for i in 6 7 8 9; do echo $i > small; hg commit --quiet -m "small $i" -d "$i 0"; done
  $ python "$TESTDIR/send-parts.py" ../server 'desc("small 5")::desc("small 7")' 'desc("small 8")::' | grep -v adding
  this push has 5 changesets, at most 4 are taken at once
  transaction abort!
  rollback completed
  abort: pretxnclose.sizes hook failed
  $ hg -R ../server log -r tip -T '{desc}\n'
  small 4

Without limits the hook lets everything pass.

  $ sed -i.old '/ = 1 kb/d;/ = 3 kb/d;/ = 4/d' ../server/.hg/hgrc
  $ bytes 5000 > large; hg commit --quiet --addremove -m large -d '9 0'; hg push --quiet

A limit that cannot be read lets nothing pass.

  $ printf '[sizes]\nfile = large\n' >> ../server/.hg/hgrc
  $ echo 1 > small; hg commit --quiet -m small -d '10 0'; hg push --quiet
  error: pretxnclose.sizes hook failed: config: [sizes] file: expected something like 50 MB, got "large"
  transaction abort!
  rollback completed
  config error: config: [sizes] file: expected something like 50 MB, got "large"
  [30]
  $ for value in 'file = -1' 'file = infMB' 'except = set:large()' 'except = re:('; do
  >   sed -i.old '/^file/d;/^except/d' ../server/.hg/hgrc; printf "[sizes]\nfile = 1 kb\n$value\n" >> ../server/.hg/hgrc
  >   hg push --quiet 2>&1 | grep '^config'
  > done
  config error: config: [sizes] file: expected something like 50 MB, got "-1"
  config error: config: [sizes] file: expected something like 50 MB, got "infMB"
  config error: config: [sizes] except: expected patterns of paths, got set:large(): fileset expression with no context
  config error: config: [sizes] except: expected patterns of paths, got re:(: invalid pattern (re): (
