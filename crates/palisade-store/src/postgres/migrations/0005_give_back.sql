-- Gives back what was taken at `c_at`, as far as its bucket still counts it
-- (L-GIVE-BACK); then answers as `palisade.decide` does to a peek. The arguments are
-- those of `palisade.decide`, and `c_at` per charge. Buckets are locked in the order of
-- `p_keys`, as there.
CREATE FUNCTION palisade.give_back(
    p_now bigint, p_keys text[], p_need boolean[], p_create boolean[],
    s_kind smallint[], s_month boolean[], s_capacity bigint[], s_span bigint[],
    s_slot bigint[], s_step bigint[], s_burst bigint[],
    d_op smallint[], d_last int[],
    c_key int[], c_spec int[], c_cost bigint[], c_exceed smallint[], c_at bigint[],
    OUT now_us bigint, OUT admitted boolean[], OUT rebuilt int[],
    OUT used bigint[], OUT reset_at bigint[], OUT retry_at bigint[]
) LANGUAGE plpgsql AS $$
DECLARE
    held record; s int; p int; len int; span bigint; taken bigint; cost bigint;
    slot_end bigint; own bigint; gone bigint; back numeric; start bigint;
BEGIN
    PERFORM 1 FROM (SELECT FROM unnest(p_keys) WITH ORDINALITY AS u (key, ord)
                    JOIN palisade.bucket b ON b.key = u.key
                   ORDER BY u.ord
                     FOR UPDATE OF b) locked;
    -- After the locks: instants then follow the order of the decisions.
    now_us := coalesce(p_now, palisade.clock());

    FOR j IN 1..cardinality(c_key) LOOP
        s := c_spec[j]; span := s_span[s]; taken := c_at[j]; cost := c_cost[j];
        SELECT x.key, x.kind, x.at, x.n, x.hits INTO held
          FROM palisade.bucket x WHERE x.key = p_keys[c_key[j]];
        -- What another algorithm counts is another taking.
        CONTINUE WHEN NOT FOUND OR held.kind IS DISTINCT FROM s_kind[s];

        IF held.kind = 1 THEN
            len := cardinality(held.hits);
            -- One that cannot be read is for `decide` to rebuild.
            CONTINUE WHEN taken + span <= now_us OR len IS NULL OR len % 2 <> 0
                          OR array_ndims(held.hits) <> 1 OR array_position(held.hits, NULL) IS NOT NULL;
            slot_end := taken - taken % s_slot[s] + s_slot[s] - 1;
            p := 1;
            WHILE p < len AND held.hits[p] < taken LOOP p := p + 2; END LOOP;
            own := held.hits[p];
            CONTINUE WHEN p > len OR own > slot_end;
            WHILE cost > 0 AND p < len AND held.hits[p] = own LOOP
                gone := least(cost, held.hits[p + 1]);
                cost := cost - gone;
                held.n := held.n - gone;
                IF gone < held.hits[p + 1] THEN
                    held.hits[p + 1] := held.hits[p + 1] - gone;
                ELSE
                    held.hits := held.hits[:p - 1] || held.hits[p + 2:];
                    len := len - 2;
                END IF;
            END LOOP;
            IF held.n <= 0 OR len < 2 THEN
                held.kind := 0; held.n := 0; held.hits := NULL;
            END IF;
        ELSIF held.kind = 2 THEN
            -- What can have drained since then stays.
            back := s_step[s]::numeric * cost - greatest(now_us - taken, 0)::numeric * 4096;
            CONTINUE WHEN back <= 0 OR held.at < now_us;
            back := greatest(palisade.ahead(held.at, held.n, now_us) - back, 0) + now_us::numeric * 4096;
            held.at := div(back, 4096);
            held.n := back - held.at::numeric * 4096;
        ELSIF held.kind = 3 THEN
            start := CASE WHEN s_month[s] THEN palisade.month_start(taken) ELSE taken - taken % span END;
            CONTINUE WHEN start <> held.at;
            held.n := greatest(held.n - cost, 0);
        END IF;
        -- The end stays: at worst the row goes later than it could.
        UPDATE palisade.bucket x SET kind = held.kind, at = held.at, n = held.n, hits = held.hits
         WHERE x.key = held.key;
    END LOOP;

    SELECT d.admitted, d.rebuilt, d.used, d.reset_at, d.retry_at
      INTO admitted, rebuilt, used, reset_at, retry_at
      FROM palisade.decide(
          now_us, p_keys, p_need, p_create, s_kind, s_month, s_capacity, s_span, s_slot,
          s_step, s_burst, array_fill(1::smallint, ARRAY[cardinality(d_op)]), d_last,
          c_key, c_spec, c_cost, c_exceed) d;
END $$;
