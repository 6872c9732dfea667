-- One row per bucket. `window_end` is rounded up to a whole window, so that the
-- index changes once a window and every other write is a heap-only update.
-- Partitions keep indexes and vacuum small, but each one that a call touches costs
-- it some setup: hence eight, and not more.
CREATE TABLE palisade.bucket (
    key        text COLLATE "C" NOT NULL,
    window_end bigint   NOT NULL, -- microseconds; the row may go after it
    kind       smallint NOT NULL, -- 0 empty, 1 hits, 2 token bucket, 3 fixed window
    at         bigint   NOT NULL, -- 2: arrival time in microseconds; 3: start
    n          bigint   NOT NULL, -- 1: sum of the hits; 2: rest in ticks; 3: count
    hits       bigint[],          -- 1: instant, hits, instant, hits, … oldest first
    PRIMARY KEY (key) INCLUDE (window_end)
) PARTITION BY HASH (key);

DO $$
BEGIN
    FOR part IN 0..7 LOOP
        EXECUTE format(
            'CREATE TABLE palisade.bucket_%s PARTITION OF palisade.bucket
             FOR VALUES WITH (MODULUS 8, REMAINDER %s)
             WITH (fillfactor = 60, toast_tuple_target = 8160,
                   autovacuum_vacuum_scale_factor = 0.05,
                   autovacuum_vacuum_cost_delay = 1)',
            part, part);
    END LOOP;
END $$;

-- Hits of one bucket, as an element of an array of buckets.
CREATE TYPE palisade.hits AS (h bigint[]);

CREATE TABLE palisade.record (
    kind       smallint NOT NULL,
    digest     bytea    NOT NULL,
    revision   bigint   NOT NULL,
    bytes      bytea    NOT NULL,
    expires_at bigint   NOT NULL,
    PRIMARY KEY (kind, digest)
) WITH (fillfactor = 70, toast_tuple_target = 8160, autovacuum_vacuum_scale_factor = 0.05);

-- Records that could not be read, for inspection.
CREATE TABLE palisade.record_aside (
    kind       smallint NOT NULL,
    digest     bytea    NOT NULL,
    revision   bigint   NOT NULL,
    bytes      bytea    NOT NULL,
    expires_at bigint   NOT NULL,
    PRIMARY KEY (kind, digest)
);

CREATE TABLE palisade.registry (
    name    text   PRIMARY KEY,
    version bigint NOT NULL DEFAULT 0,
    size    bigint NOT NULL DEFAULT 0
);
INSERT INTO palisade.registry (name) VALUES ('allowlist'), ('tiers'), ('resets');

CREATE TABLE palisade.registry_entry (
    registry   text NOT NULL REFERENCES palisade.registry,
    id         text COLLATE "C" NOT NULL,
    bytes      bytea NOT NULL,
    expires_at bigint,
    PRIMARY KEY (registry, id)
);

-- The one clock that every node judges by.
CREATE FUNCTION palisade.clock() RETURNS bigint LANGUAGE sql VOLATILE AS
$$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$;

-- First instant of the UTC calendar month that `us` is in, and of the next one.
CREATE FUNCTION palisade.month_start(us bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS
$$ SELECT extract(epoch FROM date_trunc('month',
       timestamp 'epoch' + make_interval(secs => us / 1000000)))::bigint * 1000000 $$;

CREATE FUNCTION palisade.month_end(us bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS
$$ SELECT extract(epoch FROM date_trunc('month',
       timestamp 'epoch' + make_interval(secs => us / 1000000))
       + interval '1 month')::bigint * 1000000 $$;
