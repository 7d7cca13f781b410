# SPDX-License-Identifier: GPL-2.0-or-later
"""Every SQL statement of the embedded log, each with its index.

The schema is a list of numbered migrations.

A *stream* is one partition of one topic. Keys are the bytes of their UTF-8, headers a JSON object, times seconds since
the epoch.
"""

# "vcsr": tells our database from any other SQLite file.
APPLICATION_ID = 0x76637372

# Migration N brings a database from user_version N to N + 1. Never edit a released migration; add another.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE topics (
            id INTEGER PRIMARY KEY,
            name TEXT NOT NULL UNIQUE,
            partitions INTEGER NOT NULL,
            compacted INTEGER NOT NULL,
            retention REAL
        )""",
        # `beginning` is the first offset that may be read, `next` the one the next record gets.
        """CREATE TABLE streams (
            id INTEGER PRIMARY KEY,
            topic INTEGER NOT NULL REFERENCES topics,
            partition INTEGER NOT NULL,
            beginning INTEGER NOT NULL DEFAULT 0,
            next INTEGER NOT NULL DEFAULT 0,
            UNIQUE (topic, partition)
        )""",
        """CREATE TABLE records (
            stream INTEGER NOT NULL REFERENCES streams,
            offset INTEGER NOT NULL,
            time REAL NOT NULL,
            key BLOB,
            headers TEXT NOT NULL,
            value BLOB,
            UNIQUE (stream, offset)
        )""",
        "CREATE INDEX tombstones ON records (stream, time, offset) WHERE value IS NULL",
        # The newest offset of each key, of compacted topics only.
        """CREATE TABLE latest (
            stream INTEGER NOT NULL,
            key BLOB NOT NULL,
            offset INTEGER NOT NULL,
            PRIMARY KEY (stream, key)
        ) WITHOUT ROWID""",
        """CREATE TABLE positions (
            topic INTEGER NOT NULL,
            reader TEXT NOT NULL,
            partition INTEGER NOT NULL,
            position INTEGER NOT NULL,
            time REAL NOT NULL,
            PRIMARY KEY (topic, reader, partition)
        ) WITHOUT ROWID""",
        "CREATE TABLE transactors (identity TEXT PRIMARY KEY, epoch INTEGER NOT NULL) WITHOUT ROWID",
    ),
    (
        # When something was written last, and the pauses in which nothing was: `seconds` long, over at `until`.
        "CREATE TABLE clock (id INTEGER PRIMARY KEY CHECK (id = 1), seen REAL NOT NULL)",
        "INSERT INTO clock SELECT 1, max(time) FROM positions HAVING max(time) IS NOT NULL",
        "CREATE TABLE pauses (until REAL NOT NULL, seconds REAL NOT NULL)",
    ),
)

TABLES = "SELECT count(*) FROM sqlite_master"

# Topics: unique (name); streams: unique (topic, partition).
ADD_TOPIC = "INSERT INTO topics (name, partitions, compacted, retention) VALUES (?, ?, ?, ?) RETURNING id"
ADD_STREAM = "INSERT INTO streams (topic, partition) VALUES (?, ?)"
TOPIC = "SELECT id, partitions, compacted, retention FROM topics WHERE name = ?"
STREAMS_OF_TOPIC = "SELECT partition, id, beginning, next FROM streams WHERE topic = ? ORDER BY partition"
ALL_STREAMS = """
    SELECT streams.id, topics.compacted, topics.retention
    FROM streams JOIN topics ON topics.id = streams.topic ORDER BY streams.id"""
# All streams, a few for each topic.
ENDS = """
    SELECT topics.name, sum(streams.next) FROM streams JOIN topics ON topics.id = streams.topic
    GROUP BY topics.id ORDER BY topics.name"""

# Streams: by primary key.
STREAM = "SELECT beginning, next FROM streams WHERE id = ?"
STREAMS_BETWEEN = "SELECT id, beginning, next FROM streams WHERE id BETWEEN ? AND ?"
SET_NEXT = "UPDATE streams SET next = ? WHERE id = ?"
SET_BEGINNING = "UPDATE streams SET beginning = ? WHERE id = ?"

# Records: unique (stream, offset).
ADD_RECORD = "INSERT INTO records (stream, offset, time, key, headers, value) VALUES (?, ?, ?, ?, ?, ?)"
RECORDS = """
    SELECT offset, time, key, headers, value FROM records
    WHERE stream = ? AND offset >= ? ORDER BY offset LIMIT ?"""
BEFORE = "SELECT offset, time, key FROM records WHERE stream = ? AND offset < ? ORDER BY offset DESC LIMIT 1"
MARK = "SELECT time, key FROM records WHERE stream = ? AND offset = ?"
OLDEST = "SELECT offset, time FROM records WHERE stream = ? AND offset >= ? AND time <= ? ORDER BY offset LIMIT ?"
DELETE_BEFORE = "DELETE FROM records WHERE stream = ? AND offset < ?"
DELETE_RECORD = "DELETE FROM records WHERE stream = ? AND offset = ?"

# Compaction: primary key of `latest`; partial index `tombstones`.
LATEST = "SELECT offset FROM latest WHERE stream = ? AND key = ?"
SET_LATEST = (
    "INSERT INTO latest (stream, key, offset) VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET offset = excluded.offset"
)
OLD_TOMBSTONES = """
    SELECT offset, key FROM records WHERE stream = ? AND value IS NULL AND time < ? ORDER BY time LIMIT ?"""
DELETE_LATEST = "DELETE FROM latest WHERE stream = ? AND key = ? AND offset = ?"

# Clock: one row; pauses: few.
SEEN = "SELECT seen FROM clock"
SET_SEEN = "INSERT INTO clock (id, seen) VALUES (1, ?) ON CONFLICT DO UPDATE SET seen = excluded.seen"
ADD_PAUSE = "INSERT INTO pauses (until, seconds) VALUES (?, ?)"
PAUSES = "SELECT until, seconds FROM pauses ORDER BY until DESC"
DELETE_PAUSES_AFTER = "DELETE FROM pauses WHERE until > ?"

# Positions: primary key (topic, reader, partition).
SET_POSITION = """
    INSERT INTO positions (topic, reader, partition, position, time) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT DO UPDATE SET position = excluded.position, time = excluded.time"""
POSITIONS_OF_GROUP = "SELECT partition, position FROM positions WHERE topic = ? AND reader = ? ORDER BY partition"
POSITIONS_OF_TOPIC = "SELECT reader, partition, position FROM positions WHERE topic = ? ORDER BY reader, partition"

# Transactors: primary key (identity). Random steps distinguish transactors after the same copy of the log.
NEXT_EPOCH = """
    INSERT INTO transactors (identity, epoch) VALUES (?1, ?2)
    ON CONFLICT DO UPDATE SET epoch = epoch + ?2 RETURNING epoch"""
SET_EPOCH = "INSERT INTO transactors (identity, epoch) VALUES (?, ?) ON CONFLICT DO UPDATE SET epoch = excluded.epoch"
EPOCH = "SELECT epoch FROM transactors WHERE identity = ?"
