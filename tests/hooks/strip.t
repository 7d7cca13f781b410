A strip writes the changesets behind the removed one again. That is no push, and no policy refuses it, for they would be lost.

  $ printf '[extensions]\nstrip =\n' >> $HGRCPATH
  $ hg init server; cd server
  $ echo base > base; hg commit --quiet --addremove -m base -d '0 0'
  $ echo wrong > wrong; hg commit --quiet --addremove -m wrong -d '1 0'; hg update --quiet 0
  $ echo inner = inner > .hgsub; hg init inner; echo x > inner/x; hg -R inner commit --quiet --addremove -m x -d '0 0'
  $ python -c 'print("x" * 5000)' > large
  $ hg commit --quiet --addremove -m 'large, with a subrepository' -d '2 0'
  $ hg update --quiet 0; echo head > head; hg commit --quiet --addremove -m head -d '3 0'
  $ cat >> .hg/hgrc << EOF
  > [hooks]
  > pretxnopen.streams = python:hooks.streams.refuse
  > pretxnclose.heads = python:hooks.heads.one_per_branch
  > pretxnclose.sizes = python:hooks.sizes.check
  > pretxnchangegroup.sizes = python:hooks.sizes.check
  > pretxnchangegroup.subrepositories = python:hooks.subrepositories.refuse
  > [sizes]
  > file = 1 kb
  > push = 1 kb
  > changesets = 1
  > EOF
  $ hg strip --quiet -r 1
  $ hg log -T '{rev} {desc}\n'
  2 head
  1 large, with a subrepository
  0 base
