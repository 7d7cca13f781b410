Two repositories whose names differ in case alone, or in how Unicode spells them, are one to many file systems. So the master
refuses the second where it is made.

  $ . "$TESTDIR/master.sh"
  $ cat >> $TESTTMP/master.hgrc <<E
  > $TESTTMP/more = Some/Prefix
  > E
  $ hgm init -q repos/proj
  $ hgm init -q repos/dir/one
  $ hgm init -q "repos/$(printf 'caf\303\251')"
  $ hgm init -q repos/some/prefix/two
  $ hg init source

  $ hgm init repos/PROJ
  abort: repository path PROJ: there is $TESTTMP/repos/proj, whose name is the same but for case or Unicode
  (choose another name: the disks of some clients take the two for one)
  [255]
  $ hgm clone -q source repos/Proj
  abort: repository path Proj: there is $TESTTMP/repos/proj, whose name is the same but for case or Unicode
  (choose another name: the disks of some clients take the two for one)
  [255]
  $ hg init ssh://user@dummy/$TESTTMP/repos/Proj
  abort: repository path Proj: there is $TESTTMP/repos/proj, whose name is the same but for case or Unicode
  (choose another name: the disks of some clients take the two for one)
  abort: could not create remote repo
  [255]
  $ hgm init "repos/$(printf 'cafe\314\201')" 2>&1 | head -1 | sed 's/: there.*//' | od -c | head -2 | tail -1
  *c   a   f   e 314 201* (glob)
  $ hgm init repos/static
  abort: repository path static: web servers have their own files at static/
  (choose another name: no client could reach it)
  [255]
  $ hgm clone -q source repos/static/one
  abort: repository path static/one: web servers have their own files at static/
  (choose another name: no client could reach it)
  [255]
  $ hgm init more/static/one
  abort: repository path Some/Prefix/static/one: web servers have their own files at static/
  (choose another name: no client could reach it)
  [255]
  $ hgm init repos/Dir/One
  abort: repository path Dir/One: there is $TESTTMP/repos/dir/one, whose name is the same but for case or Unicode
  (choose another name: the disks of some clients take the two for one)
  [255]
  $ hgm init more/TWO
  abort: repository path Some/Prefix/TWO: there is $TESTTMP/repos/some/prefix/two, whose name is the same but for case or Unicode
  (choose another name: the disks of some clients take the two for one)
  [255]
  $ hgm init -q repos/other
  $ hgm -R repos/other replicaterename --yes repos/PROJ
  abort: repository path PROJ: there is $TESTTMP/repos/proj, whose name is the same but for case or Unicode
  (choose another name: the disks of some clients take the two for one)
  [255]
  $ hgm -R repos/other replicaterename --yes repos/static
  abort: repository path static: web servers have their own files at static/
  (choose another name: no client could reach it)
  [255]
  $ mv repos/other repos/static
  $ hgm -R repos/static replicaterename
  abort: repository path static: web servers have their own files at static/
  (choose another name: no client could reach it)
  [255]
  $ mv repos/static repos/other
  $ mv repos/other repos/PROJ
  $ hgm -R repos/PROJ replicaterename
  abort: repository path PROJ: there is $TESTTMP/repos/proj, whose name is the same but for case or Unicode
  (choose another name: the disks of some clients take the two for one)
  [255]
  $ mv repos/PROJ repos/other
  $ cp -a repos/other repos/OTHER
  $ hgm -R repos/OTHER replicateadopt --yes
  abort: repository path OTHER: there is $TESTTMP/repos/other, whose name is the same but for case or Unicode
  (choose another name: the disks of some clients take the two for one)
  [255]
  $ mv repos/OTHER repos/static
  $ hgm -R repos/static replicateadopt --yes
  abort: repository path static: web servers have their own files at static/
  (choose another name: no client could reach it)
  [255]
  $ mv repos/static repos/OTHER
  $ rm -r repos/OTHER
  $ ls repos
  caf* (glob)
  dir
  other
  proj
  some
  $ events | grep -v created
  [1]

Folders above may differ in spelling, and a repository may change the spelling of its own name.

  $ hgm init -q repos/Dir/two
  $ hgm -R repos/proj replicaterename --yes repos/Proj
  wrote rename message into replication log: Proj

Existing twins go on as they are.

  $ HGRCPATH=$HGRCPATH hg clone -q -U source repos/OTHER
  $ hgm -R repos/OTHER bookmark -r null here
  recorded push in replication log in *s (glob)
  $ hgm -R repos/other bookmark -r null here
  recorded push in replication log in *s (glob)
