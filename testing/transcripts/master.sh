# SPDX-License-Identifier: GPL-2.0-or-later
# A master in $TESTTMP/repos with the embedded log; `events` prints what the log has, `hgm` is hg as the master's operator,
# `push` pushes over ssh as a developer whose machine knows nothing of replication;
# MASTER_TOO names one more hgrc for the server.
cat > $TESTTMP/master.hgrc <<E
[extensions]
*:required = yes
pushlog =
vcsreplicator =
strip =
[experimental]
evolution = all
[vcsreplicator]
role = master
log = sqlite://$TESTTMP/log.db
source = hg://master
[vcsreplicator-roots]
$TESTTMP/repos = .
E
cat > $TESTTMP/ssh <<E
#!/bin/sh
shift
HGRCPATH=$TESTTMP/master.hgrc:\$MASTER_TOO
export HGRCPATH
eval "\$*"
E
chmod +x $TESTTMP/ssh
cat >> $HGRCPATH <<E
[ui]
ssh = $TESTTMP/ssh
username = dana
interactive = no
[extensions]
drawdag = $RUNTESTDIR/drawdag.py
[experimental]
evolution = all
E
mkdir $TESTTMP/repos
python "$TESTDIR/master-log.py" create sqlite://$TESTTMP/log.db
hgm() { HGRCPATH=$TESTTMP/master.hgrc hg "$@"; }
events() { python "$TESTDIR/master-log.py" show sqlite://$TESTTMP/log.db "$@"; }
