# SPDX-License-Identifier: GPL-2.0-or-later
"""The decisions of the aggregator: levels in, releases and notices out. Pure.

Pure means: no log, no clock, no thread. Rules of this room:

- An event is released once every mirror that gates it acked *applied* at least its sequence; its notice is written once every one
  acked *serving*. Both go strictly in order of sequence. An ack counts if its event is known, by id and digest; one beyond what
  is known counts as soon as that is known.
- An event that changes URL or visibility is released once everything before it in its repository is announced. A repository's
  creation at a path, or its rename to it, is released once the notices of the repositories that lived there before are written,
  those of their departure included. If such a repository leaves without any event, the release follows after DEPARTURE_PATIENCE;
  if none is known, once all is read that the log had (`succession`). The release of the later one marks such a repository
  as deleted.
- Which mirrors gate is asked at the moment of the decision, by the path that the repository has now.
- If no mirror gates, nothing is released, unless the roster allows it.
- Every record that cannot be used becomes an ErrorRecord in the same transaction that passes it. So does a record that causes an
  unexpected exception: it raises Poisoned, and once `poison` names it, it is passed unread. A repository named there is stalled.
- An event of a newer version, and all that follows it in its repository, is kept in `pending` as it came, under a key of another
  form (`REPOSITORY/PARTITION:OFFSET`). A newer aggregator takes these first when it starts; meanwhile nothing of them is judged. A
  notice of a part could be false, and whole records outlast the retention of `events`.
"""
