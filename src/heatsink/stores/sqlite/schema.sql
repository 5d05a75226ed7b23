-- "HEAT" in ASCII marks the file as Heatsink's. It is set before any table is created.
PRAGMA application_id = 0x48454154;

CREATE TABLE IF NOT EXISTS rows (
  partition TEXT NOT NULL, raw BLOB NOT NULL, body BLOB NOT NULL,
  epoch_ms INTEGER NOT NULL, buckets INTEGER NOT NULL, expires_ms INTEGER, deleted INTEGER NOT NULL,
  PRIMARY KEY (partition, raw)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS rows_by_expiry ON rows (expires_ms) WHERE expires_ms IS NOT NULL;

-- One row per counter and partition. `value` is a whole number of any length, as text: a fold sums
-- the values of several partitions.
CREATE TABLE IF NOT EXISTS shares (
  partition TEXT PRIMARY KEY, value TEXT NOT NULL DEFAULT '0',
  sealed_ms INTEGER NOT NULL DEFAULT 0, folded_ms INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS tokens (
  partition TEXT NOT NULL, token BLOB NOT NULL, time_ms INTEGER NOT NULL, amount INTEGER NOT NULL,
  PRIMARY KEY (partition, token)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS writers (
  partition TEXT NOT NULL, writer BLOB NOT NULL, time_ms INTEGER NOT NULL,
  raised INTEGER NOT NULL, lowered INTEGER NOT NULL, folded INTEGER NOT NULL,
  PRIMARY KEY (partition, writer)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS meta (id INTEGER PRIMARY KEY CHECK (id = 1), meta BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS epochs (key TEXT PRIMARY KEY, epochs BLOB NOT NULL, decision BLOB NOT NULL)
  WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS pins (key TEXT PRIMARY KEY, decision BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS log (version INTEGER PRIMARY KEY, entry BLOB NOT NULL);

CREATE TABLE IF NOT EXISTS reports (id INTEGER PRIMARY KEY, report BLOB NOT NULL);
