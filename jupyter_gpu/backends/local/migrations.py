"""What each version of the store adds. Additive only: older code still reads what it knows, and version 1 is never edited."""

from __future__ import annotations

VERSION_1 = """
    CREATE TABLE workloads (
        sequence INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        attempt INTEGER NOT NULL,
        version INTEGER NOT NULL DEFAULT 0,
        owner TEXT NOT NULL,
        content TEXT NOT NULL,
        kind TEXT NOT NULL,
        name TEXT NOT NULL,
        queue TEXT NOT NULL,
        priority INTEGER NOT NULL,
        resource TEXT NOT NULL,
        gpus INTEGER NOT NULL,
        start_timeout_s REAL NOT NULL,
        orphan_after_s REAL,
        grace_s REAL NOT NULL,
        ttl_s REAL NOT NULL,
        phase TEXT NOT NULL,
        position INTEGER,
        reason TEXT,
        devices TEXT NOT NULL DEFAULT '[]',
        created REAL NOT NULL,
        admitted REAL,
        started REAL,
        ended REAL,
        expires REAL,
        boot_id TEXT NOT NULL,
        admitted_boot_s REAL,
        unheld_boot_s REAL,
        spawned INTEGER NOT NULL DEFAULT 0,
        stop TEXT,
        stop_sent INTEGER NOT NULL DEFAULT 0,
        kill_boot_s REAL,
        spec TEXT NOT NULL
    );
    CREATE INDEX workloads_by_phase ON workloads (phase);
    CREATE INDEX workloads_by_expiry ON workloads (expires) WHERE expires IS NOT NULL;
    CREATE INDEX workloads_by_version ON workloads (id, sequence, version);
    CREATE TABLE attempts (
        id TEXT NOT NULL,
        attempt INTEGER NOT NULL,
        sequence INTEGER NOT NULL,
        phase TEXT NOT NULL,
        reason TEXT,
        devices TEXT NOT NULL,
        created REAL NOT NULL,
        admitted REAL,
        started REAL,
        ended REAL,
        expires REAL,
        spec TEXT NOT NULL,
        PRIMARY KEY (id, attempt)
    );
    CREATE INDEX attempts_by_expiry ON attempts (expires);
    """

# Stories are written by triggers, so that no change of a phase can be forgotten there. Those of the version before are told as
# far as it wrote them down. Its queues were mere words, and all had all devices: what lives in one moves into the default queue.
VERSION_2 = """
    ALTER TABLE workloads ADD COLUMN product TEXT;
    ALTER TABLE workloads ADD COLUMN cpu INTEGER NOT NULL DEFAULT 1000;
    ALTER TABLE workloads ADD COLUMN memory INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE workloads ADD COLUMN preemptible INTEGER NOT NULL DEFAULT 1;
    ALTER TABLE workloads ADD COLUMN retries INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE workloads ADD COLUMN failures INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE workloads ADD COLUMN max_runtime_s REAL;
    ALTER TABLE workloads ADD COLUMN ran_s REAL NOT NULL DEFAULT 0;
    ALTER TABLE workloads ADD COLUMN queued_boot_s REAL NOT NULL DEFAULT 0;
    ALTER TABLE workloads ADD COLUMN called INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE workloads ADD COLUMN expires_boot_s REAL;
    ALTER TABLE attempts ADD COLUMN boot_id TEXT;
    ALTER TABLE attempts ADD COLUMN expires_boot_s REAL;
    UPDATE workloads SET
        cpu = CAST(json_extract(spec, '$.resources.cpus') * 1000 AS INTEGER),
        memory = json_extract(spec, '$.resources.memory_bytes'),
        max_runtime_s = json_extract(spec, '$.max_runtime_s'),
        queued_boot_s = coalesce(unheld_boot_s, 0),
        position = NULL;
    UPDATE workloads SET cpu = cpu + 1 WHERE cpu < json_extract(spec, '$.resources.cpus') * 1000;
    UPDATE workloads SET queue = 'default', spec = json_set(spec, '$.queue', 'default')
        WHERE queue != 'default' AND phase IN ('queued', 'starting', 'running');
    DROP INDEX workloads_by_phase;
    DROP INDEX workloads_by_version;
    DROP INDEX workloads_by_expiry;
    DROP INDEX attempts_by_expiry;
    CREATE INDEX workloads_in_line ON workloads (phase, queue, called DESC, priority DESC, sequence, id, attempt, version);
    CREATE INDEX workloads_with_clients ON workloads (phase) WHERE orphan_after_s IS NOT NULL;
    CREATE INDEX workloads_that_expire ON workloads (expires, boot_id, expires_boot_s) WHERE expires IS NOT NULL;
    CREATE INDEX attempts_that_expire ON attempts (expires, boot_id, expires_boot_s) WHERE expires IS NOT NULL;

    CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL);

    CREATE TABLE usage (
        sequence INTEGER NOT NULL,
        attempt INTEGER NOT NULL,
        id TEXT NOT NULL,
        name TEXT NOT NULL,
        owner TEXT NOT NULL,
        queue TEXT NOT NULL,
        kind TEXT NOT NULL,
        priority INTEGER NOT NULL,
        resource TEXT NOT NULL,
        gpus INTEGER NOT NULL,
        admitted REAL NOT NULL,
        ended REAL NOT NULL,
        phase TEXT NOT NULL,
        device_s REAL NOT NULL,
        measured_device_s REAL NOT NULL DEFAULT 0,
        idle_device_s REAL NOT NULL DEFAULT 0,
        cpu_s REAL NOT NULL DEFAULT 0,
        peak_memory_bytes INTEGER NOT NULL DEFAULT 0,
        PRIMARY KEY (sequence, attempt)
    );
    CREATE INDEX usage_by_end ON usage (ended);
    INSERT INTO usage (
            sequence, attempt, id, admitted, ended, phase, name, owner, queue, kind, priority, resource, gpus, device_s
        )
        SELECT sequence, attempt, id, admitted, ended, phase,
            json_extract(spec, '$.name'),
            json_extract(spec, '$.owner'),
            json_extract(spec, '$.queue'),
            json_extract(spec, '$.kind'),
            json_extract(spec, '$.priority'),
            json_extract(spec, '$.resources.accelerator.resource'),
            json_extract(spec, '$.resources.gpus'),
            json_extract(spec, '$.resources.gpus') * max(ended - admitted, 0)
        FROM (
            SELECT sequence, attempt, id, spec, admitted, ended, phase FROM attempts
            UNION ALL SELECT sequence, attempt, id, spec, admitted, ended, phase FROM workloads
        ) WHERE admitted IS NOT NULL AND ended IS NOT NULL;

    CREATE TABLE events (id TEXT NOT NULL, attempt INTEGER NOT NULL, time REAL NOT NULL, phase TEXT NOT NULL, reason TEXT);
    CREATE INDEX events_of_one ON events (id);
    INSERT INTO events (id, attempt, time, phase, reason)
        SELECT id, attempt, created, 'queued', iif(phase = 'queued', reason, NULL) FROM workloads
        UNION ALL SELECT id, attempt, created, 'queued', NULL FROM attempts;
    INSERT INTO events (id, attempt, time, phase)
        SELECT id, attempt, admitted, 'starting' FROM workloads WHERE admitted IS NOT NULL
        UNION ALL SELECT id, attempt, admitted, 'starting' FROM attempts WHERE admitted IS NOT NULL;
    INSERT INTO events (id, attempt, time, phase, reason)
        SELECT id, attempt, started, 'running', iif(phase = 'running', reason, NULL) FROM workloads WHERE started IS NOT NULL
        UNION ALL SELECT id, attempt, started, 'running', NULL FROM attempts WHERE started IS NOT NULL;
    INSERT INTO events (id, attempt, time, phase, reason)
        SELECT id, attempt, ended, phase, reason FROM workloads WHERE ended IS NOT NULL
        UNION ALL SELECT id, attempt, ended, phase, reason FROM attempts WHERE ended IS NOT NULL;

    CREATE TRIGGER workload_arrives AFTER INSERT ON workloads
    BEGIN
        INSERT INTO events VALUES (NEW.id, NEW.attempt, NEW.created, NEW.phase, NEW.reason);
    END;
    CREATE TRIGGER workload_learns_why_it_waits AFTER UPDATE OF reason ON workloads
    WHEN NEW.phase = 'queued' AND OLD.phase = 'queued' AND NEW.attempt = OLD.attempt AND OLD.reason IS NULL
    BEGIN
        UPDATE events SET reason = NEW.reason WHERE rowid = (SELECT max(rowid) FROM events WHERE id = NEW.id);
    END;
    CREATE TRIGGER workload_changes AFTER UPDATE OF attempt, phase, reason ON workloads
    WHEN NEW.attempt != OLD.attempt OR NEW.phase != OLD.phase OR (
        json_extract(NEW.reason, '$.code') IS NOT json_extract(OLD.reason, '$.code')
        AND NOT (NEW.phase = 'queued' AND OLD.reason IS NULL)
    )
    BEGIN
        INSERT INTO events VALUES (
            NEW.id,
            NEW.attempt,
            coalesce(
                CASE
                    WHEN NEW.attempt != OLD.attempt THEN NEW.created
                    WHEN NEW.phase = OLD.phase THEN NULL
                    WHEN NEW.phase = 'starting' THEN NEW.admitted
                    WHEN NEW.phase = 'running' THEN NEW.started
                    ELSE NEW.ended
                END,
                (julianday('now') - 2440587.5) * 86400.0
            ),
            NEW.phase,
            NEW.reason
        );
    END;
"""
