A master whose Mercurial cannot load the extension, or cannot set it up, refuses pushes. Its processes start cold.

  $ . "$TESTDIR/master.sh"
  $ sed -i "s|^eval|PATH='$COLD':\$PATH; eval|" ssh; grep -c "^PATH='$COLD':" ssh
  1
  $ hgm init repos/one
  (recorded repository creation in replication log in *s) (glob)
  $ hg clone -q ssh://user@dummy/$TESTTMP/repos/one clone; cd clone
  $ echo a > a; hg commit -qAm a
  $ cp ../master.hgrc ../sound.hgrc
  $ hgrc() { sed "$1" ../sound.hgrc > ../master.hgrc; }
  $ pushed() { hg push 2>&1 | grep -v '^pushing\|^searching\|^remote: \*\*\*\|^(or\|no suitable' | cut -c 1-150; hg -R ../repos/one log -T '{desc}\n'; }

`*:required` guards against a misspelt name or a missing package, in any line of [extensions].

  $ hgrc 's/^vcsreplicator =/vcsreplicater =/'
  $ pushed
  remote: abort: failed to import extension "vcsreplicater": No module named 'vcsreplicater'
  remote: (loading of this extension was required, see `hg help config.extensions` for details)
  $ hgrc 's/^pushlog =/pushlogg =/'
  $ pushed
  remote: abort: failed to import extension "pushlogg": No module named 'pushlogg'
  remote: (loading of this extension was required, see `hg help config.extensions` for details)

Even without that line the extension refuses if Mercurial is not what it needs: too old, a module is missing, or a function is
missing or has other parameters. The message names it.

  $ cat > ../other.py << EOF
  > import os, sys
  > from mercurial import exchange, repair, util, wireprotov1server
  > how = os.environ["HOW"]
  > if how == "old":
  >     util.version = lambda: b"6.2.1"
  > elif how == "module":
  >     sys.modules["mercurial.streamclone"] = None
  > elif how == "guards":
  >     sys.modules["hgext.vcsreplicator.hg.serving.copies"] = None
  > elif how == "capture":
  >     sys.modules["hgext.vcsreplicator.hg.wirecommands"] = None
  > elif how == "lost":
  >     del exchange._pullobsolete
  > elif how == "gone":
  >     del exchange.unbundle
  > elif how == "changed":
  >     def strip(ui, repo, nodes): pass
  >     repair.strip = strip
  > elif how == "command":
  >     del wireprotov1server.commands[b"pushkey"]
  > EOF
  $ hgrc "/required/d;s|^pushlog =|other = $TESTTMP/other.py\npushlog =|"
  $ for how in old capture lost changed; do
  >   echo "- $how"; HOW=$how pushed
  > done
  - old
  remote: abort: the extension vcsreplicator cannot be loaded: it needs Mercurial 6.9 or newer, this is * (glob)
  remote: (until that is fixed no repository is opened)
  - capture
  remote: abort: the extension vcsreplicator cannot do its work with Mercurial *: ModuleNotFoundError: import of hgext.vcsreplicator.* (glob)
  remote: (until that is fixed no repository is opened)
  - lost
  remote: abort: the extension * cannot do its work with Mercurial *: MissingSeam: mercurial.exchange._pullobsolete is missing (glob)
  remote: (until that is fixed no repository is opened)
  - changed
  remote: abort: the extension * cannot do its work with Mercurial *: MissingSeam: mercurial.repair.strip takes (ui, r* (glob)
  remote: (until that is fixed no repository is opened)

A mirror refuses as well if it cannot guard what it serves, which a master does not load.

  $ cp ../master.hgrc ../other.hgrc; sed -i 's/^role = master/role = mirror/' ../master.hgrc
  $ for how in module guards gone command; do
  >   echo "- $how"; HOW=$how pushed
  > done
  - module
  remote: abort: the extension pushlog cannot do its work with Mercurial *: *mercurial.streamclone* (glob)
  remote: (until that is fixed no repository is opened)
  - guards
  remote: abort: the extension vcsreplicator cannot do its work with Mercurial *: ModuleNotFoundError: import of hgext.vcsreplicator.* (glob)
  remote: (until that is fixed no repository is opened)
  - gone
  remote: abort: the extension pushlog cannot do its work with Mercurial *: MissingSeam: mercurial.exchange.unbundle is missing (glob)
  remote: (until that is fixed no repository is opened)
  - command
  remote: abort: the extension vcsreplicator cannot do its work with Mercurial *: MissingSeam: mercurial.wireprotov1server.commands.p* (glob)
  remote: (until that is fixed no repository is opened)
  $ mv ../other.hgrc ../master.hgrc

While a line names the pushlog, it cannot be left out by a mistake, not even without `*:required`.

  $ hgrc '/required/d;s|^pushlog =|pushlog = /nowhere/pushlog.py|'
  $ pushed
  remote: abort: the extension pushlog cannot do its work with Mercurial *: it is not loaded (glob)
  remote: (until that is fixed no repository is opened)

  $ hgrc ''
  $ pushed
  remote: adding changesets
  remote: adding manifests
  remote: adding file changes
  remote: recorded push in pushlog
  remote: added 1 changesets with 1 changes to 1 files
  remote: recorded push in replication log in *s (glob)
  a

A repository in a form that only a newer Mercurial knows, as after a downgrade, is refused by the name of the form.

  $ echo b > b; hg commit -qAm b
  $ requires=../repos/one/.hg/requires; cp $requires ../known; echo form-of-tomorrow >> $requires
  $ pushed
  remote: abort: repository requires features unknown to this Mercurial: form-of-tomorrow
  remote: (see https://mercurial-scm.org/wiki/MissingRequirement for more information)
  abort: repository requires features unknown to this Mercurial: form-of-tomorrow
  (see https://mercurial-scm.org/wiki/MissingRequirement for more information)
  [255]
  $ cp ../known $requires
  $ pushed | tail -2
  b
  a
