# SPDX-License-Identifier: GPL-2.0-or-later
"""The schema, indexes and SQL statements of the database of webhook deliveries."""

# Attempts of a delivery that are kept, the newest. Each has the slot of its number, in which a later one replaces it.
KEPT_ATTEMPTS = 20

SCHEMA = """
CREATE TABLE IF NOT EXISTS subscriptions (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL,
    origin TEXT NOT NULL,
    content TEXT NOT NULL,
    created_at REAL NOT NULL,
    removed_at REAL,
    paused_reason TEXT,
    failing_since REAL
);
CREATE UNIQUE INDEX IF NOT EXISTS subscriptions_name ON subscriptions (name) WHERE removed_at IS NULL;
CREATE TABLE IF NOT EXISTS messages (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL,
    replay TEXT NOT NULL,
    repository TEXT NOT NULL,
    repo_url TEXT NOT NULL,
    type TEXT NOT NULL,
    sequence INTEGER NOT NULL,
    previous TEXT,
    body TEXT NOT NULL,
    UNIQUE (id, replay)
);
CREATE TABLE IF NOT EXISTS signed_notices (
    message INTEGER PRIMARY KEY REFERENCES messages (number),
    signed TEXT NOT NULL
);
CREATE TRIGGER IF NOT EXISTS messages_removed AFTER DELETE ON messages
    BEGIN DELETE FROM signed_notices WHERE message = OLD.number; END;
CREATE TABLE IF NOT EXISTS deliveries (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    subscription INTEGER NOT NULL REFERENCES subscriptions (id),
    message INTEGER NOT NULL REFERENCES messages (number),
    state TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    mature_at REAL NOT NULL,
    created_at REAL NOT NULL,
    finished_at REAL,
    status INTEGER,
    error TEXT,
    UNIQUE (subscription, message)
);
CREATE INDEX IF NOT EXISTS deliveries_queued ON deliveries (attempt, mature_at) WHERE state = 'queued';
CREATE INDEX IF NOT EXISTS deliveries_tried ON deliveries (subscription, created_at)
    WHERE state = 'queued' AND attempt > 0;
CREATE INDEX IF NOT EXISTS deliveries_finished ON deliveries (state, finished_at) WHERE state <> 'queued';
CREATE INDEX IF NOT EXISTS deliveries_message ON deliveries (message);
CREATE INDEX IF NOT EXISTS deliveries_failed ON deliveries (subscription, id) WHERE error IS NOT NULL;
CREATE TABLE IF NOT EXISTS attempts (
    delivery INTEGER NOT NULL,
    slot INTEGER NOT NULL,
    number INTEGER NOT NULL,
    ended_at REAL NOT NULL,
    duration REAL NOT NULL,
    status INTEGER,
    error TEXT,
    answer TEXT NOT NULL,
    PRIMARY KEY (delivery, slot)
) WITHOUT ROWID;
CREATE TRIGGER IF NOT EXISTS deliveries_removed AFTER DELETE ON deliveries
    BEGIN DELETE FROM attempts WHERE delivery = OLD.id; END;
CREATE TABLE IF NOT EXISTS history (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    time REAL NOT NULL,
    subscription TEXT NOT NULL,
    what TEXT NOT NULL,
    who TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS reached (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    position INTEGER NOT NULL,
    mark TEXT
);
CREATE TABLE IF NOT EXISTS identity (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    id TEXT NOT NULL
);
"""
# What the log should have of a delivery. The column `recorded` is what it has: 0 nothing, else the attempts plus 1, or -1 for a
# delivery that was given up.
_DUE = "CASE state WHEN 'queued' THEN attempt + 1 WHEN 'exhausted' THEN -1 ELSE 0 END"
# `notice` is the offset for which the position waits; NULL for replays, which a request waits for.
HAS_RECORDED = "SELECT 1 FROM pragma_table_info('deliveries') WHERE name = 'recorded'"
ADD_RECORDED = (
    "ALTER TABLE deliveries ADD COLUMN recorded INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE deliveries ADD COLUMN notice INTEGER",
    f"CREATE INDEX deliveries_unrecorded ON deliveries (id) WHERE recorded <> {_DUE}",
)

ADD_SUBSCRIPTION = "INSERT INTO subscriptions (name, origin, content, created_at) VALUES (?, ?, ?, ?)"
CHANGE_SUBSCRIPTION = "UPDATE subscriptions SET content = ? WHERE id = ?"
REMOVE_SUBSCRIPTION = "UPDATE subscriptions SET removed_at = ? WHERE id = ?"
CANCEL = "UPDATE deliveries SET state = 'cancelled', finished_at = ? WHERE subscription = ? AND state = 'queued'"
SUBSCRIPTIONS = """SELECT id, name, origin, content, created_at, paused_reason, failing_since FROM subscriptions
    WHERE removed_at IS NULL ORDER BY id"""
FAILING_ONES = "SELECT id, failing_since FROM subscriptions WHERE failing_since IS NOT NULL ORDER BY id"
SUBSCRIPTION_COLUMNS = ("id", "name", "origin", "subscription", "created_at", "paused_reason", "failing_since")
NAMED = "SELECT id FROM subscriptions WHERE name = ? AND removed_at IS NULL"
PAUSE = "UPDATE subscriptions SET paused_reason = ? WHERE id = ?"
FAILING = "UPDATE subscriptions SET failing_since = ? WHERE id = ?"
SHIFT_FAILING = "UPDATE subscriptions SET failing_since = failing_since + ? WHERE failing_since IS NOT NULL"
SHIFT_FINISHED = "UPDATE deliveries SET finished_at = MIN(finished_at + ?, ?) WHERE state <> 'queued'"
HISTORY = "INSERT INTO history (time, subscription, what, who) VALUES (?, ?, ?, ?)"
READ_HISTORY = "SELECT time, subscription, what, who FROM history ORDER BY id DESC LIMIT ?"
LAST_PAUSE = "SELECT time FROM history WHERE subscription = ? AND what LIKE 'paused: %' ORDER BY id DESC LIMIT 1"
LAST_HISTORY = "SELECT COALESCE(MAX(id), 0) FROM history"

REACHED = "SELECT position FROM reached"
RECORD_REACHED = "INSERT OR REPLACE INTO reached (one, position) VALUES (1, ?)"
IDENTITY = "SELECT id FROM identity"
RECORD_IDENTITY = "INSERT OR REPLACE INTO identity (one, id) VALUES (1, ?)"

# What is due, and the members of `OwedDelivery` in their order.
UNRECORDED = f"""SELECT {_DUE}, d.id, s.name, d.state, d.attempt, d.mature_at, d.created_at, d.finished_at, d.status, d.error,
    m.id, m.replay, m.repository, m.repo_url, m.type, m.sequence, m.previous, m.body, n.signed
    FROM deliveries d JOIN messages m ON m.number = d.message JOIN subscriptions s ON s.id = d.subscription
    LEFT JOIN signed_notices n ON n.message = m.number
    WHERE recorded <> {_DUE}
    AND NOT (recorded = 0 AND attempt = 0 AND state = 'queued' AND notice IS NOT NULL AND d.created_at BETWEEN ? AND ?)
    ORDER BY d.id LIMIT ?"""
MARK_RECORDED = "UPDATE deliveries SET recorded = ? WHERE id = ?"
MARK_RESTORED = """UPDATE deliveries SET recorded = ? WHERE message = ?
    AND subscription IN (SELECT id FROM subscriptions WHERE name = ? AND removed_at IS NULL)"""
HELD_NOTICE = f"SELECT MIN(notice) FROM deliveries WHERE recorded <> {_DUE} AND recorded = 0"
FORGET_RECORDED = "UPDATE deliveries SET recorded = 0 WHERE recorded <> 0"
CLEAR = tuple(f"DELETE FROM {table}" for table in ("deliveries", "messages", "subscriptions", "reached"))
RESTORE_SUBSCRIPTION = """INSERT INTO subscriptions (name, origin, content, created_at, paused_reason, failing_since)
    VALUES (?, ?, ?, ?, ?, ?)"""
RESTORE_DELIVERY = """INSERT OR IGNORE INTO deliveries
    (id, subscription, message, state, attempt, mature_at, created_at, finished_at, status, error)
    SELECT ?, id, ?, ?, ?, ?, ?, ?, ?, ? FROM subscriptions WHERE name = ? AND removed_at IS NULL AND created_at <= ?"""

ADD_MESSAGE = """INSERT INTO messages (id, replay, repository, repo_url, type, sequence, previous, body)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id, replay) DO NOTHING"""
NUMBER = "SELECT number FROM messages WHERE id = ? AND replay = ?"
ADD_SIGNED = "INSERT OR IGNORE INTO signed_notices (message, signed) VALUES (?, ?)"
# Never from before its subscription, though the clock was set back: `RESTORE_DELIVERY` would take it for a former one's.
ADD_DELIVERY = """INSERT INTO deliveries (subscription, message, notice, state, attempt, mature_at, created_at)
    SELECT id, ?, ?, 'queued', 0, ?, MAX(?, created_at) FROM subscriptions WHERE id = ? AND removed_at IS NULL
    ON CONFLICT (subscription, message) DO NOTHING"""
QUEUED = """SELECT d.mature_at, d.id, d.subscription, d.attempt, m.replay, m.repository, m.repo_url,
    CASE m.type WHEN 'reporenamed.1' THEN json_extract(m.body, '$.data.old_repo_url') END
    FROM deliveries d JOIN messages m ON m.number = d.message JOIN subscriptions s ON s.id = d.subscription
    WHERE d.state = 'queued' AND s.paused_reason IS NULL ORDER BY d.id"""
COUNT_PAUSED = """SELECT COUNT(*), COALESCE(MAX(d.id), 0) FROM deliveries d JOIN subscriptions s ON s.id = d.subscription
    WHERE d.state = 'queued' AND s.paused_reason IS NOT NULL"""
# The members of `DeliveryAttempt`, in their order.
REQUEST = """SELECT d.attempt, m.id, m.replay, m.repository, m.previous, m.sequence, m.body, n.signed
    FROM deliveries d JOIN messages m ON m.number = d.message
    LEFT JOIN signed_notices n ON n.message = m.number WHERE d.id = ? AND d.state = 'queued'"""
NUMBERS = """SELECT d.id FROM deliveries d JOIN messages m ON m.number = d.message
    JOIN subscriptions s ON s.id = d.subscription WHERE m.id = ? AND m.replay = ? AND s.name = ? ORDER BY d.id"""
NAMES = """SELECT m.id, m.repository, m.sequence
    FROM deliveries d JOIN messages m ON m.number = d.message WHERE d.id = ?"""
# The row is as its attempt began: a redelivery sets the attempt to 0, and where it is 0, another time.
AS_BEGUN = "id = ? AND attempt = ? AND (attempt > 0 OR mature_at = ?)"
LATER = f"UPDATE deliveries SET attempt = ?, mature_at = ?, status = ?, error = ? WHERE {AS_BEGUN}"
SHIFT = "UPDATE deliveries SET mature_at = mature_at - ? WHERE state = 'queued' AND attempt > 0"
BOUND = "UPDATE deliveries SET mature_at = ? WHERE state = 'queued' AND attempt > 0 AND mature_at > ?"
FINISH = "UPDATE deliveries SET state = ?, attempt = ?, finished_at = ?, status = ?, error = ? WHERE id = ?"
GIVE_UP = FINISH.replace("id = ?", AS_BEGUN)
ADD_ATTEMPT = f"""INSERT OR REPLACE INTO attempts
    SELECT d.id, made.number % {KEPT_ATTEMPTS}, made.number, ?2, ?3, ?4, ?5, ?6 FROM deliveries d,
    (SELECT COALESCE(MAX(number), 0) + 1 AS number FROM attempts WHERE delivery = ?1) made WHERE d.id = ?1"""
ATTEMPT_COLUMNS = ("number", "ended_at", "duration", "status", "error", "answer")
ATTEMPTS = f"SELECT {', '.join(ATTEMPT_COLUMNS)} FROM attempts WHERE delivery = ? ORDER BY number DESC LIMIT ?"
REQUEUE = """UPDATE deliveries SET state = 'queued', attempt = 0, mature_at = ?, finished_at = NULL
    WHERE id = ? AND state <> 'queued' AND subscription IN (SELECT id FROM subscriptions WHERE removed_at IS NULL)"""
HASTEN = "UPDATE deliveries SET attempt = 0, mature_at = ? WHERE id = ? AND state = 'queued'"
STATES_OF = """SELECT d.state, COUNT(*) FROM deliveries d JOIN messages m ON m.number = d.message
    WHERE m.id = ? AND m.replay = '' GROUP BY d.state"""
COUNTS = "SELECT state, COUNT(*) FROM deliveries GROUP BY state"
ROW = """SELECT d.id, s.name, d.state, d.attempt, d.mature_at, d.created_at, d.finished_at, d.status, d.error,
    m.id, m.replay, m.repo_url, m.type, m.sequence, m.previous, m.body
    FROM deliveries d JOIN messages m ON m.number = d.message JOIN subscriptions s ON s.id = d.subscription"""
LIST = f"{ROW} WHERE (? IS NULL OR d.state = ?) AND (? IS NULL OR s.name = ?) ORDER BY d.id DESC LIMIT ?"
SHOW = f"{ROW} WHERE d.id = ?"
LAST_ERROR = """SELECT error FROM deliveries
    WHERE subscription = ? AND error IS NOT NULL ORDER BY id DESC LIMIT 1"""
# Of each subscription that is not paused, its oldest delivery that failed and waits.
LATE = """SELECT s.name, d.id, d.created_at, d.error FROM subscriptions s JOIN deliveries d ON d.id =
    (SELECT id FROM deliveries WHERE subscription = s.id AND state = 'queued' AND attempt > 0 ORDER BY created_at LIMIT 1)
    WHERE s.removed_at IS NULL AND s.paused_reason IS NULL AND d.created_at < ? ORDER BY s.id"""
LAST_GIVEN_UP = """SELECT finished_at FROM deliveries
    WHERE subscription = ? AND error IS NOT NULL AND state = 'exhausted' ORDER BY id DESC LIMIT 1"""
EXPIRE = """UPDATE deliveries SET state = 'cancelled' WHERE id IN
    (SELECT id FROM deliveries WHERE state = 'exhausted' AND finished_at < ? LIMIT 500)"""
PURGE = """DELETE FROM deliveries WHERE id IN
    (SELECT id FROM deliveries WHERE state = ? AND finished_at < ? AND recorded = 0 LIMIT 500)"""
PURGE_MESSAGES = """DELETE FROM messages WHERE number IN (SELECT number FROM messages m
    WHERE NOT EXISTS (SELECT 1 FROM deliveries d WHERE d.message = m.number) LIMIT 500)"""

# The columns of `LIST` and `SHOW`.
COLUMNS = (
    *("id", "subscription", "state", "attempt", "mature_at", "created_at", "finished_at", "status", "error"),
    *("message", "replay", "repo_url", "type", "sequence", "previous", "body"),
)
