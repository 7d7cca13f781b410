An ordinary install is all that Mercurial needs to load the extensions by name.

  $ cat >> "$HGRCPATH" << EOF
  > [extensions]
  > *:required = yes
  > vcsreplicator =
  > pushlog =
  > [vcsreplicator]
  > role = mirror
  > EOF
  $ hg version --verbose | grep -E "vcsreplicator|pushlog"
    pushlog        external  * (glob)
    vcsreplicator  external  * (glob)

The manual is where Mercurial's users look for it.

  $ hg help vcsreplicator | head -1
  vcsreplicator extension - replicate repositories to mirrors, and announce what

Mercurial's own extensions stay where they were, beside ours.

  $ hg --config extensions.strip= help strip | head -1
  hg *strip [-k] [-f] [-B bookmark] [-r] REV... (glob)
