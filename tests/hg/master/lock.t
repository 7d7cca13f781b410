A repository can be closed to every Mercurial that does not load the extension.

  $ . "$TESTDIR/master.sh"
  $ cat >> master.hgrc <<E
  > [vcsreplicator]
  > lock = yes
  > E
  $ hgm init repos/one
  (recorded repository creation in replication log in *s) (glob)
  $ hg -R repos/one tip
  abort: repository requires features unknown to this Mercurial: exp-vcsreplicator
  (see https://mercurial-scm.org/wiki/MissingRequirement for more information)
  [255]

Over the wire nothing changes, and clones are not locked.

  $ hg clone -q ssh://user@dummy/$TESTTMP/repos/one clone
  $ cd clone
  $ echo a > a
  $ hg commit -qAm a
  $ hg push -q
  $ cd ..
  $ hg clone -q --stream ssh://user@dummy/$TESTTMP/repos/one streamed
  $ hg -R streamed log -T '{desc}\n'
  a
  $ hgm clone -q repos/one linked
  $ hg -R linked log -T '{desc}\n'
  a
  $ python - <<E
  > from hgext.vcsreplicator.words import wire
  > from hgext.vcsreplicator.log import EVENTS
  > from hgext.vcsreplicator.log.opening import open_log
  > with open_log("sqlite://$TESTTMP/log.db") as log:
  >     reader = log.reader({(EVENTS, partition): 0 for partition in range(log.partitions(EVENTS))})
  >     print({name for record in reader.poll(1.0) for name in wire.decode(record.value).event.settings.requirements if "vcs" in name})
  > E
  set()

A format upgrade keeps it, and an older repository gets it when the master opens it.

  $ hgm -R repos/one debugupgraderepo --run --optimize re-delta-all -q > /dev/null
  $ hg -R repos/one tip 2>&1 | grep -c exp-vcsreplicator
  1
  $ hg init repos/old
  $ hgm -R repos/old bookmark -r null x
  recorded push in replication log in *s (glob)
  $ hg -R repos/old tip 2>&1 | grep -c exp-vcsreplicator
  1

The relay opens it too.

  $ python "$TESTDIR/master-finish.py" $TESTTMP/repos
  $ python - <<E
  > from hgext.vcsreplicator.hg.relaying import MasterRepositories
  > print(len(MasterRepositories({"$TESTTMP/repos": ""}, "hg://master").open("$TESTTMP/repos/one").changelog))
  > E
  1
  $ hgm -R repos/one tip --config vcsreplicator.lock=perhaps
  config error: config: [vcsreplicator] lock: expected yes or no, got "perhaps"
  [255]
