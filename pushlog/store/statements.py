# SPDX-License-Identifier: GPL-2.0-or-later
"""The schema of ``.hg/pushlog2.db``, and every statement that reads or writes it.

Above a statement is the index that it needs. Tools read, and operators edit, ``pushlog`` and ``changesets``.
``pushlog_state`` says up to which byte of the pushlog's file the tables are derived from it; ``pushlog_edit`` collects, by
triggers, the ids of pushes that another program changed.
"""

TABLES = """
CREATE TABLE IF NOT EXISTS changesets (pushid INTEGER, rev INTEGER, node text);
CREATE TABLE IF NOT EXISTS pushlog (id INTEGER PRIMARY KEY AUTOINCREMENT, user TEXT, date INTEGER);
CREATE UNIQUE INDEX IF NOT EXISTS changeset_node ON changesets (node);
CREATE UNIQUE INDEX IF NOT EXISTS changeset_rev ON changesets (rev);
CREATE INDEX IF NOT EXISTS changeset_pushid ON changesets (pushid);
CREATE INDEX IF NOT EXISTS pushlog_date ON pushlog (date);
CREATE INDEX IF NOT EXISTS pushlog_user ON pushlog (user);
"""

_EDITS = "".join(
    f"CREATE TRIGGER IF NOT EXISTS {table}_{event.lower()} AFTER {event} ON {table} BEGIN {statements} END;\n"
    for table, key in (("pushlog", "id"), ("changesets", "pushid"))
    for event, statements in (
        ("INSERT", f"INSERT OR IGNORE INTO pushlog_edit VALUES (NEW.{key});"),
        ("DELETE", f"INSERT OR IGNORE INTO pushlog_edit VALUES (OLD.{key});"),
        (
            "UPDATE",
            f"INSERT OR IGNORE INTO pushlog_edit VALUES (OLD.{key}); INSERT OR IGNORE INTO pushlog_edit VALUES (NEW.{key});",
        ),
    )
)
EDIT_TABLE = "CREATE TABLE IF NOT EXISTS pushlog_edit (pushid INTEGER PRIMARY KEY);"
BOOKKEEPING = f"""
CREATE TABLE IF NOT EXISTS pushlog_state (position INTEGER NOT NULL, fingerprint INTEGER NOT NULL);
{EDIT_TABLE}
{_EDITS}"""

HAS_TABLE = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
GET_STATE = "SELECT position, fingerprint FROM pushlog_state"
CLEAR_STATE = "DELETE FROM pushlog_state"
SET_STATE = "INSERT INTO pushlog_state VALUES (?, ?)"
EDITED = "SELECT pushid FROM pushlog_edit WHERE pushid IS NOT NULL ORDER BY pushid"
FORGET_EDITS = "DELETE FROM pushlog_edit"
HIGHEST_USED_ID = """
SELECT max(coalesce((SELECT max(id) FROM pushlog), 0), coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'pushlog'), 0))
"""
NO_NODES = """
SELECT pushid, quote(node) FROM changesets
WHERE typeof(node) != 'text' OR length(node) != 40 OR node GLOB '*[^0-9a-f]*' ORDER BY pushid
"""
# changeset_pushid
FIRST_EMPTIED = """
SELECT id FROM pushlog WHERE NOT EXISTS (SELECT 1 FROM changesets WHERE pushid = pushlog.id) ORDER BY id LIMIT 1
"""
LAST_ID = "SELECT coalesce(max(id), 0) FROM pushlog"
COUNT = "SELECT count(*) FROM pushlog"
# primary key
PUSH = "SELECT CAST(user AS BLOB), date FROM pushlog WHERE id = ?"
# changeset_pushid
EACH_NODE = "SELECT node FROM changesets WHERE pushid = ?"
# changeset_pushid
NODES = "SELECT node FROM changesets WHERE pushid = ? ORDER BY rev"
# primary key
PUSHES_BETWEEN = "SELECT id, CAST(user AS BLOB), date FROM pushlog WHERE id >= ? AND id <= ? ORDER BY id LIMIT ?"
# changeset_pushid
NODES_BETWEEN = "SELECT pushid, node FROM changesets WHERE pushid >= ? AND pushid <= ? ORDER BY pushid, rev"
ALL_NODES = "SELECT node FROM changesets"
ALL_REVISIONS = "SELECT rev, node FROM changesets"
# changeset_pushid, primary key
STRAY = "SELECT 1 FROM changesets WHERE NOT EXISTS (SELECT 1 FROM pushlog WHERE id = pushid) LIMIT 1"
# changeset_node
PUSH_OF_NODE = "SELECT pushid FROM changesets WHERE node = ?"
INSERT_PUSH = "INSERT OR REPLACE INTO pushlog (id, user, date) VALUES (?, ?, ?)"
DELETE_PUSH = "DELETE FROM pushlog WHERE id = ?"
INSERT_CHANGESET = "INSERT INTO changesets (pushid, rev, node) VALUES (?, ?, ?)"
REPLACE_CHANGESET = "INSERT OR REPLACE INTO changesets (pushid, rev, node) VALUES (?, ?, ?)"
DELETE_CHANGESETS = "DELETE FROM changesets WHERE pushid = ?"
# changeset_rev
FREE_REVISION = "UPDATE changesets SET rev = NULL WHERE rev = ? AND node != ?"
CHANGESETS_FROM = "SELECT rowid, node, rev FROM changesets WHERE rev >= ? OR rev IS NULL ORDER BY rev"
CLEAR_REVISIONS_FROM = "UPDATE changesets SET rev = NULL WHERE rev >= ?"
SET_REVISION = "UPDATE changesets SET rev = ? WHERE rowid = ?"
# pushlog_date, changeset_pushid
NODES_BY_DATE = """
SELECT node, date FROM pushlog JOIN changesets ON pushid = id WHERE date >= ? AND date <= ?
"""
# pushlog_user, changeset_pushid
NODES_BY_USER = """
SELECT node FROM pushlog JOIN changesets ON pushid = id WHERE user = CAST(? AS TEXT)
"""
# pushlog_user
FIRST_USER = "SELECT CAST(min(user) AS BLOB) FROM pushlog"
# pushlog_user
NEXT_USER = "SELECT CAST(min(user) AS BLOB) FROM pushlog WHERE user > CAST(? AS TEXT)"
# A reader's overlay of the tables: views of the same names, with pushes that the tables do not have yet.
LATE = """
CREATE TEMP TABLE IF NOT EXISTS late (id INTEGER PRIMARY KEY);
CREATE TEMP TABLE IF NOT EXISTS late_pushlog (id INTEGER PRIMARY KEY, user TEXT, date INTEGER);
CREATE TEMP TABLE IF NOT EXISTS late_changesets (pushid INTEGER, rev INTEGER, node TEXT);
CREATE TEMP VIEW IF NOT EXISTS pushlog AS
SELECT id, user, date FROM main.pushlog WHERE id NOT IN (SELECT id FROM temp.late)
UNION ALL SELECT id, user, date FROM temp.late_pushlog;
CREATE TEMP VIEW IF NOT EXISTS changesets AS
SELECT pushid, rev, node FROM main.changesets WHERE pushid NOT IN (SELECT id FROM temp.late)
UNION ALL SELECT pushid, rev, node FROM temp.late_changesets;
"""
