-- Records by compare-and-swap, registries with a version, expiry in small steps.

-- What is stored under each key, in order; null where there is nothing or it has expired.
CREATE FUNCTION palisade.load(
    p_now bigint, p_kinds smallint[], p_digests bytea[],
    OUT now_us bigint, OUT revisions bigint[], OUT bodies bytea[]
) LANGUAGE plpgsql STABLE AS $$
BEGIN
    now_us := coalesce(p_now, palisade.clock());
    SELECT array_agg(r.revision ORDER BY u.ord), array_agg(r.bytes ORDER BY u.ord)
      INTO revisions, bodies
      FROM unnest(p_kinds, p_digests) WITH ORDINALITY AS u (kind, digest, ord)
      LEFT JOIN palisade.record r
        ON r.kind = u.kind AND r.digest = u.digest AND r.expires_at > now_us;
END $$;

-- Writes all or none. The keys come sorted, so no two commits wait for each other.
-- A null body deletes; an expected revision of 0 stands for "not there".
CREATE FUNCTION palisade.commit(
    p_now bigint, p_kinds smallint[], p_digests bytea[], p_expected bigint[],
    p_bodies bytea[], p_expires bigint[]
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    now_us CONSTANT bigint := coalesce(p_now, palisade.clock());
    held boolean;
BEGIN
    FOR i IN 1..cardinality(p_kinds) LOOP
        IF p_expected[i] = 0 AND p_bodies[i] IS NULL THEN
            SELECT count(*) = 0 INTO held FROM palisade.record r
             WHERE r.kind = p_kinds[i] AND r.digest = p_digests[i] AND r.expires_at > now_us;
        ELSIF p_expected[i] = 0 THEN
            INSERT INTO palisade.record AS r (kind, digest, revision, bytes, expires_at)
            VALUES (p_kinds[i], p_digests[i], 1, p_bodies[i], p_expires[i])
            ON CONFLICT (kind, digest) DO UPDATE
               SET revision = 1, bytes = excluded.bytes, expires_at = excluded.expires_at
             WHERE r.expires_at <= now_us;
            held := FOUND;
        ELSIF p_bodies[i] IS NULL THEN
            DELETE FROM palisade.record r
             WHERE r.kind = p_kinds[i] AND r.digest = p_digests[i]
               AND r.revision = p_expected[i] AND r.expires_at > now_us;
            held := FOUND;
        ELSE
            UPDATE palisade.record r
               SET revision = r.revision + 1, bytes = p_bodies[i], expires_at = p_expires[i]
             WHERE r.kind = p_kinds[i] AND r.digest = p_digests[i]
               AND r.revision = p_expected[i] AND r.expires_at > now_us;
            held := FOUND;
        END IF;
        IF NOT held THEN
            RAISE EXCEPTION USING ERRCODE = 'PL001';
        END IF;
    END LOOP;
    RETURN true;
EXCEPTION WHEN SQLSTATE 'PL001' THEN
    RETURN false;
END $$;

CREATE FUNCTION palisade.set_aside(p_now bigint, p_kind smallint, p_digest bytea, p_keep bigint)
RETURNS void LANGUAGE sql AS $$
    WITH gone AS (
        DELETE FROM palisade.record r WHERE r.kind = p_kind AND r.digest = p_digest RETURNING r.*
    )
    INSERT INTO palisade.record_aside (kind, digest, revision, bytes, expires_at)
    SELECT g.kind, g.digest, g.revision, g.bytes, coalesce(p_now, palisade.clock()) + p_keep
      FROM gone g
    ON CONFLICT (kind, digest) DO UPDATE
       SET revision = excluded.revision, bytes = excluded.bytes, expires_at = excluded.expires_at
$$;

-- False if the registry is full. The registry's own row is the lock.
CREATE FUNCTION palisade.put_entry(
    p_registry text, p_id text, p_bytes bytea, p_expires bigint, p_size_max bigint
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    held bigint;
BEGIN
    SELECT size INTO STRICT held FROM palisade.registry WHERE name = p_registry FOR UPDATE;
    UPDATE palisade.registry_entry SET bytes = p_bytes, expires_at = p_expires
     WHERE registry = p_registry AND id = p_id;
    IF NOT FOUND THEN
        IF held >= p_size_max THEN
            RETURN false;
        END IF;
        INSERT INTO palisade.registry_entry (registry, id, bytes, expires_at)
        VALUES (p_registry, p_id, p_bytes, p_expires);
        held := held + 1;
    END IF;
    UPDATE palisade.registry SET version = version + 1, size = held WHERE name = p_registry;
    RETURN true;
END $$;

-- True if a live entry was removed.
CREATE FUNCTION palisade.remove_entry(p_now bigint, p_registry text, p_id text)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    until bigint;
BEGIN
    PERFORM FROM palisade.registry WHERE name = p_registry FOR UPDATE;
    DELETE FROM palisade.registry_entry WHERE registry = p_registry AND id = p_id
    RETURNING expires_at INTO until;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE palisade.registry SET version = version + 1, size = size - 1 WHERE name = p_registry;
    RETURN until IS NULL OR until > coalesce(p_now, palisade.clock());
END $$;

-- Looks at the next `p_step` buckets after `p_after` and removes those that no longer
-- matter. Rows in use are skipped: they are not waited for. `next_key` is null at the end.
CREATE FUNCTION palisade.sweep_buckets(
    p_now bigint, p_after text, p_step int, OUT next_key text, OUT removed int
) LANGUAGE plpgsql AS $$
DECLARE
    now_us CONSTANT bigint := coalesce(p_now, palisade.clock());
    old_keys text[];
    seen int;
BEGIN
    SELECT array_agg(p.key) FILTER (WHERE p.window_end <= now_us), max(p.key), count(*)
      INTO old_keys, next_key, seen
      FROM (SELECT b.key, b.window_end FROM palisade.bucket b
             WHERE b.key > p_after COLLATE "C" ORDER BY b.key LIMIT p_step) p;
    IF seen < p_step THEN
        next_key := NULL;
    END IF;
    removed := 0;
    IF old_keys IS NOT NULL THEN
        WITH locked AS (
            SELECT b.key FROM unnest(old_keys) AS u (key)
              JOIN palisade.bucket b ON b.key = u.key
             WHERE b.window_end <= now_us
               FOR UPDATE OF b SKIP LOCKED
        )
        DELETE FROM palisade.bucket b USING locked l WHERE b.key = l.key;
        GET DIAGNOSTICS removed = ROW_COUNT;
    END IF;
END $$;

-- The same for records; then the small tables.
CREATE FUNCTION palisade.sweep_records(
    p_now bigint, p_kind smallint, p_digest bytea, p_step int,
    OUT next_kind smallint, OUT next_digest bytea, OUT removed int
) LANGUAGE plpgsql AS $$
DECLARE
    now_us CONSTANT bigint := coalesce(p_now, palisade.clock());
    seen int;
    part int;
BEGIN
    SELECT count(*), (array_agg(p.kind ORDER BY p.kind DESC, p.digest DESC))[1],
           (array_agg(p.digest ORDER BY p.kind DESC, p.digest DESC))[1]
      INTO seen, next_kind, next_digest
      FROM (SELECT r.kind, r.digest FROM palisade.record r
             WHERE (r.kind, r.digest) > (p_kind, p_digest)
             ORDER BY r.kind, r.digest LIMIT p_step) p;
    WITH locked AS (
        SELECT r.kind, r.digest FROM palisade.record r
         WHERE (r.kind, r.digest) > (p_kind, p_digest)
           AND (r.kind, r.digest) <= (next_kind, next_digest)
           AND r.expires_at <= now_us
           FOR UPDATE OF r SKIP LOCKED
    )
    DELETE FROM palisade.record r USING locked l WHERE r.kind = l.kind AND r.digest = l.digest;
    GET DIAGNOSTICS removed = ROW_COUNT;
    IF seen < p_step THEN
        next_kind := NULL;
        DELETE FROM palisade.record_aside WHERE expires_at <= now_us;
        IF EXISTS (SELECT FROM palisade.registry_entry WHERE expires_at <= now_us) THEN
            PERFORM FROM palisade.registry ORDER BY name FOR UPDATE;
            DELETE FROM palisade.registry_entry WHERE expires_at <= now_us;
            GET DIAGNOSTICS part = ROW_COUNT;
            UPDATE palisade.registry g SET size =
                (SELECT count(*) FROM palisade.registry_entry e WHERE e.registry = g.name);
            removed := removed + part;
        END IF;
    END IF;
END $$;
