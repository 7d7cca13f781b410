The files of a release, and what a mirror does when they are lost, old, damaged or do not fit.

  $ cat >> "$HGRCPATH" << EOF
  > [extensions]
  > *:required = yes
  > pushlog =
  > EOF
  $ release() { "$PYTHON" "$TESTDIR/release.py" "$@"; }
  $ seen() { hg identify --id ssh://user@dummy/$1 --config ui.ssh="\"$PYTHON\" \"$RUNTESTDIR/dummyssh\""; }
  $ hg init repo
  $ cd repo
  $ for i in 0 1 2; do echo $i > file; hg commit --quiet --addremove -m "change $i" -d "$i 0"; done
  $ cd ..
  $ cp "$HGRCPATH" plain.hgrc
  $ cat >> "$HGRCPATH" << EOF
  > [extensions]
  > *:required = yes
  > vcsreplicator =
  > [vcsreplicator]
  > role = mirror
  > EOF

The watermark is one line; beside it lie the compatible form and the bookmarks. No temporary file stays.

  $ release repo 2 7 12
  $ cat repo/.hg/replicated-watermark
  1 7 2 2484820b67bb0af565333fb0ab73f6babba7d4c0 12
  $ ls repo/.hg | grep replicated
  replicated-data
  replicated-settings
  replicated-watermark
  $ f --hexdump repo/.hg/replicated-data
  repo/.hg/replicated-data:
  0000: a2 45 68 65 61 64 73 81 54 24 84 82 0b 67 bb 0a |.Eheads.T$...g..|
  0010: f5 65 33 3f b0 ab 73 f6 ba bb a7 d4 c0 4c 6c 61 |.e3?..s......Lla|
  0020: 73 74 5f 70 75 73 68 5f 69 64 0c                |st_push_id.|
  $ seen repo
  2484820b67bb

An empty repository has the null node as its head, as `hg heads` says over the wire.

  $ hg init empty
  $ release empty 0 1
  $ cat empty/.hg/replicated-watermark
  1 1 0 0000000000000000000000000000000000000000 -
  $ f --hexdump empty/.hg/replicated-data
  empty/.hg/replicated-data:
  0000: a2 45 68 65 61 64 73 81 54 00 00 00 00 00 00 00 |.Eheads.T.......|
  0010: 00 00 00 00 00 00 00 00 00 00 00 00 00 4c 6c 61 |.............Lla|
  0020: 73 74 5f 70 75 73 68 5f 69 64 f6                |st_push_id.|
  $ seen empty
  000000000000

What cannot be read shows nothing.

  $ cp repo/.hg/replicated-watermark good
  $ for bad in '' '1 7 2' '2 7 2 x 12' "$(cat good)x"; do
  >   printf '%s' "$bad" > repo/.hg/replicated-watermark
  >   seen repo
  > done
  000000000000
  000000000000
  000000000000
  000000000000

Nor does what does not fit the store: a tip that is elsewhere, more changesets than there are.

  $ sed 's/ 2 / 1 /' good > repo/.hg/replicated-watermark; seen repo
  000000000000
  $ sed 's/ 2 / 9 /' good > repo/.hg/replicated-watermark; seen repo
  000000000000
  $ cp good repo/.hg/replicated-watermark; seen repo
  2484820b67bb

A release of what the store does not have is refused, and the former one stays.

  $ cat > wrong.py << EOF
  > from mercurial import ui
  > from pushlog.versions import factory, initialize
  > from hgext.vcsreplicator.words.errors import Diverged
  > from hgext.vcsreplicator.hg.serving import watermark
  > initialize()
  > repo = factory.repository(ui.ui.load(), b'repo')
  > for length, tip in ((2, '0' * 40), (9, '1' * 40)):
  >     try:
  >         watermark.write_watermark(repo, watermark.Watermark(seq=8, length=length, tip=tip, push_id=1))
  >     except Diverged as error:
  >         print(error)
  > watermark.lower_watermark(repo, 1)
  > print(watermark.read_watermark(repo.vfs))
  > watermark.lower_watermark(repo, 2)
  > print(watermark.read_watermark(repo.vfs).length)
  > EOF
  $ "$PYTHON" wrong.py
  $TESTTMP/repo: event 8 left 2 changesets up to 0000000000000000000000000000000000000000, which are not here
  $TESTTMP/repo: event 8 left 9 changesets up to 1111111111111111111111111111111111111111, which are not here
  Watermark(seq=7, length=1, tip='90a8f74e9175e66a3234662bcd3974bb6f5c79ff', push_id=12)
  1

Killed between two of its files, a release is repeated: the watermark itself comes in one piece, what is beside it is never ahead.

  $ cat > killed.py << EOF
  > import os, sys
  > from hgext.vcsreplicator.hg.serving import watermark
  > sys.path.insert(0, os.environ['TESTDIR'])
  > import release
  > left = int(sys.argv[1])
  > rename = os.rename
  > def counted(*names):
  >     global left
  >     left -= 1
  >     if left < 0:
  >         os._exit(9)
  >     rename(*names)
  > os.rename = counted
  > release.main('repo', 3, 9, 13)
  > EOF
  $ HGRCPATH="$TESTTMP/plain.hgrc" hg bookmark -R repo -r 2 new
  $ for kill in 0 1 2 3 4; do
  >   rm -f repo/.hg/replicated-*; release repo 1 6 11
  >   "$PYTHON" killed.py $kill; echo "exit $?"
  >   seen repo
  >   release repo 3 9 13
  >   seen repo; cat repo/.hg/replicated-bookmarks; ls repo/.hg | grep -c replicated
  > done
  exit 9
  90a8f74e9175
  ed51d10d1b1e
  ed51d10d1b1e564a7d57d664e19b47e88961757b new
  4
  exit 9
  90a8f74e9175
  ed51d10d1b1e
  ed51d10d1b1e564a7d57d664e19b47e88961757b new
  4
  exit 9
  90a8f74e9175
  ed51d10d1b1e
  ed51d10d1b1e564a7d57d664e19b47e88961757b new
  4
  exit 9
  ed51d10d1b1e
  ed51d10d1b1e
  ed51d10d1b1e564a7d57d664e19b47e88961757b new
  4
  exit 0
  ed51d10d1b1e
  ed51d10d1b1e
  ed51d10d1b1e564a7d57d664e19b47e88961757b new
  4
