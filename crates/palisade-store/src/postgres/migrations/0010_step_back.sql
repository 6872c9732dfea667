-- Counts uses that lie in the future as of now: the clock has stepped back since (F-CLOCK).
-- Buckets are locked in the order of `p_keys`, as in `palisade.decide`. When a row ends stays:
-- at worst it goes later than it could.
CREATE FUNCTION palisade.pull_to_now(
    p_now bigint, p_keys text[], p_slot bigint[], p_burst bigint[], p_start bigint[]
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    held record; now_us bigint; latest bigint; full_at numeric;
BEGIN
    PERFORM 1 FROM (SELECT FROM unnest(p_keys) WITH ORDINALITY AS u (key, ord)
                    JOIN palisade.bucket b ON b.key = u.key
                   ORDER BY u.ord
                     FOR UPDATE OF b) locked;
    now_us := coalesce(p_now, palisade.clock());
    FOR i IN 1..cardinality(p_keys) LOOP
        SELECT x.key, x.kind, x.at, x.n, x.hits INTO held
          FROM palisade.bucket x WHERE x.key = p_keys[i];
        CONTINUE WHEN NOT FOUND;
        IF held.kind = 1 THEN
            -- One that cannot be read is for `decide` to rebuild.
            CONTINUE WHEN array_ndims(held.hits) IS DISTINCT FROM 1
                          OR cardinality(held.hits) % 2 <> 0;
            latest := now_us - now_us % p_slot[i] + p_slot[i] - 1;
            -- Hits of one instant are kept together, the oldest first.
            SELECT array_agg(u.number ORDER BY pairs.at, u.ord) INTO held.hits
              FROM (SELECT least(held.hits[p], latest) AS at, sum(held.hits[p + 1])::bigint AS n
                      FROM generate_series(1, cardinality(held.hits), 2) AS p
                     GROUP BY 1) pairs,
                   unnest(ARRAY[pairs.at, pairs.n]) WITH ORDINALITY AS u (number, ord);
        ELSIF held.kind = 2 THEN
            full_at := now_us::numeric * 4096 + p_burst[i];
            CONTINUE WHEN held.at::numeric * 4096 + held.n <= full_at;
            held.at := div(full_at, 4096);
            held.n := full_at - held.at::numeric * 4096;
        ELSIF held.kind = 3 THEN
            CONTINUE WHEN held.at <= now_us;
            held.at := p_start[i];
        END IF;
        UPDATE palisade.bucket x SET at = held.at, n = held.n, hits = held.hits
         WHERE x.key = held.key;
    END LOOP;
END $$;
