# SPDX-License-Identifier: GPL-2.0-or-later
"""The decisions of the aggregator: levels in, releases and notices out. Pure: no log, no clock, no thread.

Rules of this room:

- An event is released once every mirror that gates it acked *applied* at least its sequence; its notice is written once every one
  acked *serving*. Both go strictly in order of sequence. An ack counts if its event is known, by id and digest; one beyond what
  is known counts as soon as that is known.
- What changes URL or visibility is released when everything before it in its repository is announced. A repository's creation at a
  path, or its rename to it, is released when the notices of those that lived there before are written, the one of their
  departure included; of one that leaves without any event, after DEPARTURE_PATIENCE (`succession`).
- Which mirrors gate is asked at the moment of the decision, by the path that the repository has now.
- No mirror gates: nothing is released, unless the roster allows it.
- Every record that cannot be used becomes an ErrorRecord in the same transaction that passes it. So does one that causes an
  unexpected exception: it raises Poisoned, and once `poison` names it, it is passed unread. A repository named there is stalled.
- An event of a newer version, and all that follows it in its repository, is kept in `pending` as it came, under a key of another
  form (`REPOSITORY/PARTITION:OFFSET`). A newer aggregator takes these first when it starts; meanwhile nothing of them is judged.
"""
