-- Translation of the limit arithmetic of palisade-core. Kinds of state: 0 empty,
-- 1 hits, 2 token bucket, 3 fixed window. Ticks are 2^-12 microseconds and may pass
-- 2^63: where an arrival time lies less than 2^49 microseconds ahead (18 years), the
-- burst is below 2^61 ticks and the cost within it, every sum stays below 2^63 and is
-- a bigint; elsewhere numeric, which is slow and has no end.

-- Ticks by which an arrival time lies after `now_us`.
CREATE FUNCTION palisade.ahead(at bigint, n bigint, now_us bigint) RETURNS numeric
LANGUAGE sql IMMUTABLE AS
$$ SELECT greatest((at - now_us)::numeric * 4096 + n, 0) $$;

-- What a state of another algorithm counts for.
CREATE FUNCTION palisade.used(
    kind smallint, at bigint, n bigint, h bigint[], now_us bigint,
    span bigint, month boolean, step bigint
) RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    p int := 1;
BEGIN
    CASE kind
    WHEN 1 THEN
        WHILE n > 0 AND p < cardinality(h) AND h[p] + span <= now_us LOOP
            n := n - h[p + 1];
            p := p + 2;
        END LOOP;
        RETURN n;
    WHEN 2 THEN
        RETURN least(div(palisade.ahead(at, n, now_us) + step - 1, step), 4294967295);
    WHEN 3 THEN
        RETURN CASE
            WHEN month AND palisade.month_start(now_us) > at THEN 0
            WHEN NOT month AND now_us - now_us % span > at THEN 0
            ELSE n
        END;
    ELSE
        RETURN 0;
    END CASE;
END $$;

-- Decides any number of requests, one after the other, at one instant.
--
-- `p_keys` are the buckets of all of them, distinct and in byte order: rows are made
-- and locked in that order, so no two calls wait for each other. A bucket that is
-- needed must exist: `p_create` makes the ones that may be missing, and where that
-- guess was wrong nothing is done (`serialization_failure`). Specifications are
-- numbered (`s_`), decisions are runs of charges (`d_last` is the last one of
-- each), and a charge (`c_`) names its bucket and specification by number.
-- Operations: 0 consume, 1 peek, 2 refund, 3 reset. On exceeding: 0 deny, 1 report,
-- 2 count. `retry_at` is 0 where the cost fits.
CREATE FUNCTION palisade.decide(
    p_now bigint, p_keys text[], p_need boolean[], p_create boolean[],
    s_kind smallint[], s_month boolean[], s_capacity bigint[], s_span bigint[],
    s_slot bigint[], s_step bigint[], s_burst bigint[],
    d_op smallint[], d_last int[],
    c_key int[], c_spec int[], c_cost bigint[], c_exceed smallint[],
    OUT now_us bigint, OUT admitted boolean[], OUT rebuilt int[],
    OUT used bigint[], OUT reset_at bigint[], OUT retry_at bigint[]
) LANGUAGE plpgsql AS $$
DECLARE
    forever CONSTANT bigint := 9223372036854775807;
    near CONSTANT bigint := 562949953421312;
    ticks_max CONSTANT bigint := 2305843009213693952;
    tat_max CONSTANT numeric := 18446744073709551615;
    k_count CONSTANT int := cardinality(p_keys);
    k_ord   bigint[];
    k_kind  smallint[];
    k_at    bigint[];
    k_n     bigint[];
    k_end   bigint[];
    k_hits  palisade.hits[];
    k_bad   boolean[];
    k_dirty boolean[] := array_fill(false, ARRAY[k_count]);
    found int; boxed palisade.hits;
    first int; last int := 0; op smallint; ok boolean; bad int;
    k int; s int; cost bigint; wait bigint;
    kind smallint; at bigint; n bigint; h bigint[]; p int; len int;
    span bigint; start bigint; room bigint; slot_at bigint;
    gap numeric; ticks bigint; changes boolean; dirty_count int := 0;
BEGIN
    IF true = ANY (p_create) THEN
        INSERT INTO palisade.bucket AS b (key, window_end, kind, at, n)
        SELECT u.key, 0, 0, 0, 0
          FROM unnest(p_keys, p_create) AS u (key, wanted)
         WHERE u.wanted
        ON CONFLICT (key) DO NOTHING;
    END IF;

    SELECT count(*), array_agg(x.ord), array_agg(x.kind), array_agg(x.at), array_agg(x.n),
           array_agg(x.window_end), array_agg(x.boxed), array_agg(x.bad)
      INTO found, k_ord, k_kind, k_at, k_n, k_end, k_hits, k_bad
      FROM (SELECT u.ord, b.kind, b.at, b.n, b.window_end, ROW(b.hits)::palisade.hits AS boxed,
                   NOT coalesce(CASE b.kind
                       WHEN 0 THEN true
                       WHEN 1 THEN b.n > 0 AND array_ndims(b.hits) = 1
                                   AND cardinality(b.hits) % 2 = 0
                                   AND array_position(b.hits, NULL) IS NULL
                       WHEN 2 THEN b.at >= 0 AND b.n BETWEEN 0 AND 4095
                       WHEN 3 THEN b.at >= 0 AND b.n >= 0
                   END, false) AS bad
              FROM unnest(p_keys) WITH ORDINALITY AS u (key, ord)
              JOIN palisade.bucket b ON b.key = u.key
             ORDER BY u.ord
               FOR UPDATE OF b) x;

    IF found < k_count THEN
        -- The found ones move to their places, last first; the others are empty.
        p := found;
        FOR i IN REVERSE k_count..1 LOOP
            IF p > 0 AND k_ord[p] = i THEN
                k_kind[i] := k_kind[p]; k_at[i] := k_at[p]; k_n[i] := k_n[p];
                k_end[i] := k_end[p]; k_hits[i] := k_hits[p]; k_bad[i] := k_bad[p];
                p := p - 1;
            ELSIF p_need[i] THEN
                -- Expiry took it, or the guess was wrong. Nothing was done yet.
                RAISE EXCEPTION USING ERRCODE = 'serialization_failure';
            ELSE
                k_kind[i] := 0; k_at[i] := 0; k_n[i] := 0;
                k_end[i] := 0; k_hits[i] := NULL; k_bad[i] := false;
            END IF;
        END LOOP;
    END IF;
    IF true = ANY (k_bad) THEN
        FOR i IN 1..k_count LOOP
            IF k_bad[i] THEN
                k_kind[i] := 0;
                k_end[i] := 0;
                k_dirty[i] := true;
                dirty_count := dirty_count + 1;
            END IF;
        END LOOP;
    END IF;

    -- After the locks: instants then follow the order of the decisions.
    now_us := coalesce(p_now, palisade.clock());
    used := array_fill(0::bigint, ARRAY[cardinality(c_key)]);
    reset_at := used;
    retry_at := used;
    admitted := array_fill(true, ARRAY[cardinality(d_op)]);
    rebuilt := array_fill(0, ARRAY[cardinality(d_op)]);

    FOR d IN 1..cardinality(d_op) LOOP
        first := last + 1;
        last := d_last[d];
        op := d_op[d];
        ok := true;
        bad := 0;

        IF op >= 2 THEN
            FOR j IN first..last LOOP
                k := c_key[j]; s := c_spec[j]; cost := c_cost[j];
                kind := k_kind[k];
                CONTINUE WHEN kind = 0;
                at := k_at[k]; n := k_n[k]; span := s_span[s];
                IF op = 3 THEN
                    kind := 0;
                ELSIF kind <> s_kind[s] THEN
                    boxed := k_hits[k];
                    n := least(palisade.used(kind, at, n, boxed.h, now_us, span, s_month[s], s_step[s]),
                               s_capacity[s]);
                    kind := CASE WHEN n > cost OR n > 0 AND s_kind[s] = 3 THEN s_kind[s] ELSE 0 END;
                    n := greatest(n - cost, 0);
                    CASE s_kind[s]
                    WHEN 1 THEN
                        boxed.h := ARRAY[now_us - now_us % s_slot[s] + s_slot[s] - 1, n];
                        k_hits[k] := boxed;
                    WHEN 2 THEN
                        gap := least(now_us::numeric * 4096 + n::numeric * s_step[s], tat_max);
                        at := div(gap, 4096);
                        n := gap - at::numeric * 4096;
                    ELSE
                        at := CASE WHEN s_month[s] THEN palisade.month_start(now_us) ELSE now_us - now_us % span END;
                    END CASE;
                ELSIF kind = 1 THEN
                    boxed := k_hits[k]; h := boxed.h; p := 1; len := cardinality(h);
                    WHILE p < len AND h[p] + span <= now_us LOOP
                        n := n - h[p + 1];
                        p := p + 2;
                    END LOOP;
                    WHILE cost > 0 AND p < len LOOP
                        room := least(cost, h[p + 1]);
                        h[p + 1] := h[p + 1] - room;
                        cost := cost - room;
                        n := n - room;
                        IF h[p + 1] = 0 THEN p := p + 2; END IF;
                    END LOOP;
                    IF n <= 0 OR p > len THEN
                        kind := 0; n := 0;
                    ELSE
                        boxed.h := h[p:];
                        k_hits[k] := boxed;
                    END IF;
                ELSIF kind = 2 THEN
                    gap := greatest(palisade.ahead(at, n, now_us) - s_step[s]::numeric * cost, 0)
                           + now_us::numeric * 4096;
                    at := div(gap, 4096);
                    n := gap - at::numeric * 4096;
                ELSE
                    start := CASE WHEN s_month[s] THEN palisade.month_start(now_us) ELSE now_us - now_us % span END;
                    IF start <= at THEN n := greatest(n - cost, 0); END IF;
                END IF;
                k_kind[k] := kind; k_at[k] := at; k_n[k] := n;
                IF kind = 0 THEN k_end[k] := 0; END IF;
                k_dirty[k] := true;
                dirty_count := dirty_count + 1;
            END LOOP;
            CONTINUE WHEN op = 3;
        END IF;

        FOR j IN first..last LOOP
            k := c_key[j]; s := c_spec[j]; cost := c_cost[j];
            IF k_bad[k] THEN
                bad := bad + 1;
                k_bad[k] := false;
            END IF;
            IF c_exceed[j] > 3 THEN
                -- An earlier charge of the decision has the same bucket.
                c_exceed[j] := c_exceed[j] - 4;
                FOR p IN first..j - 1 LOOP
                    IF c_key[p] = k THEN cost := cost + c_cost[p]; END IF;
                END LOOP;
            END IF;
            wait := 0;
            room := s_capacity[s] - cost;
            kind := k_kind[k];
            IF room < 0 THEN
                wait := forever;
            ELSIF kind = 1 THEN
                n := k_n[k];
                IF n > room THEN
                    boxed := k_hits[k]; h := boxed.h; p := 1; len := cardinality(h);
                    WHILE p < len LOOP
                        n := n - h[p + 1];
                        IF n <= room THEN
                            wait := h[p] + s_span[s];
                            EXIT;
                        END IF;
                        p := p + 2;
                    END LOOP;
                    IF wait <= now_us THEN wait := 0; END IF;
                END IF;
            ELSIF kind = 2 AND s_burst[s] < ticks_max AND k_at[k] - now_us < near THEN
                ticks := s_step[s] * cost - s_burst[s];
                IF k_at[k] >= now_us THEN ticks := ticks + (k_at[k] - now_us) * 4096 + k_n[k]; END IF;
                IF ticks > 0 THEN wait := now_us + (ticks + 4095) / 4096; END IF;
            ELSIF kind = 2 THEN
                gap := now_us::numeric * 4096;
                gap := least(palisade.ahead(k_at[k], k_n[k], now_us) + s_step[s]::numeric * cost + gap, tat_max)
                       - gap - s_burst[s];
                IF gap > 0 THEN wait := now_us + div(gap + 4095, 4096); END IF;
            ELSIF kind = 3 THEN
                at := k_at[k];
                start := CASE WHEN s_month[s] THEN palisade.month_start(now_us) ELSE now_us - now_us % s_span[s] END;
                -- A clock that went back stays in the window it was in.
                IF start <= at AND k_n[k] > room THEN
                    wait := CASE WHEN s_month[s] THEN palisade.month_end(at) ELSE at + s_span[s] END;
                END IF;
            END IF;
            IF wait > 0 THEN
                retry_at[j] := wait;
                IF c_exceed[j] = 0 THEN ok := false; END IF;
            END IF;
        END LOOP;
        IF op = 2 THEN ok := true; END IF;
        IF NOT ok THEN admitted[d] := false; END IF;
        IF bad > 0 THEN rebuilt[d] := bad; END IF;

        FOR j IN first..last LOOP
            k := c_key[j]; s := c_spec[j]; cost := c_cost[j];
            kind := k_kind[k]; at := k_at[k]; n := k_n[k]; span := s_span[s];
            changes := op = 0 AND ok AND (retry_at[j] = 0 OR c_exceed[j] = 2);
            IF kind = 1 THEN
                boxed := k_hits[k]; h := boxed.h;
            END IF;

            IF changes THEN
                IF kind <> 0 AND kind <> s_kind[s] THEN
                    n := least(palisade.used(kind, at, n, h, now_us, span, s_month[s], s_step[s]),
                               s_capacity[s]);
                    -- As if it were used now.
                    IF n > 0 THEN cost := cost + n; END IF;
                    kind := 0;
                END IF;
                IF s_kind[s] = 1 THEN
                    slot_at := now_us - now_us % s_slot[s] + s_slot[s] - 1;
                    p := 1;
                    IF kind = 1 THEN
                        len := cardinality(h);
                        WHILE p < len AND h[p] + span <= now_us LOOP
                            n := n - h[p + 1];
                            p := p + 2;
                        END LOOP;
                        IF p > len THEN kind := 0; END IF;
                    END IF;
                    IF cost = 0 AND kind = 0 THEN
                        n := 0;
                    ELSIF kind = 0 THEN
                        h := ARRAY[slot_at, cost];
                        n := cost;
                        kind := 1;
                    ELSE
                        IF p > 1 THEN h := h[p:]; len := len - p + 1; END IF;
                        IF h[len - 1] >= slot_at THEN
                            h[len] := h[len] + cost;
                        ELSIF cost > 0 THEN
                            h[len + 1] := slot_at;
                            h[len + 2] := cost;
                        END IF;
                        n := n + cost;
                    END IF;
                    boxed.h := h;
                    k_hits[k] := boxed;
                ELSIF s_kind[s] = 2 AND s_burst[s] < ticks_max AND cost <= s_capacity[s]
                      AND (kind = 0 OR at - now_us < near) THEN
                    ticks := s_step[s] * cost;
                    IF kind = 2 AND at >= now_us THEN ticks := ticks + (at - now_us) * 4096 + n; END IF;
                    at := now_us + ticks / 4096;
                    n := ticks % 4096;
                    kind := 2;
                ELSIF s_kind[s] = 2 THEN
                    gap := CASE WHEN kind = 2 THEN palisade.ahead(at, n, now_us) ELSE 0 END;
                    gap := least(gap + s_step[s]::numeric * cost + now_us::numeric * 4096, tat_max);
                    at := div(gap, 4096);
                    n := gap - at::numeric * 4096;
                    kind := 2;
                ELSE
                    start := CASE WHEN s_month[s] THEN palisade.month_start(now_us) ELSE now_us - now_us % span END;
                    IF kind = 3 AND start <= at THEN
                        n := n + cost;
                    ELSE
                        at := start;
                        n := cost;
                        kind := 3;
                    END IF;
                END IF;
                k_kind[k] := kind; k_at[k] := at; k_n[k] := n;
                IF NOT k_dirty[k] THEN
                    k_dirty[k] := true;
                    dirty_count := dirty_count + 1;
                END IF;
            END IF;

            IF kind = 0 THEN
                reset_at[j] := now_us;
            ELSIF kind = 1 THEN
                p := 1; len := cardinality(h);
                WHILE p < len AND h[p] + span <= now_us LOOP
                    n := n - h[p + 1];
                    p := p + 2;
                END LOOP;
                used[j] := n;
                wait := h[len - 1] + span;
                reset_at[j] := CASE WHEN n = 0 THEN now_us ELSE wait END;
            ELSIF kind = 2 AND s_burst[s] < ticks_max AND at - now_us < near THEN
                wait := now_us;
                IF at >= now_us THEN
                    used[j] := ((at - now_us) * 4096 + n + s_step[s] - 1) / s_step[s];
                    wait := at + CASE WHEN n > 0 THEN 1 ELSE 0 END;
                END IF;
                reset_at[j] := wait;
            ELSIF kind = 2 THEN
                gap := palisade.ahead(at, n, now_us);
                used[j] := least(div(gap + s_step[s] - 1, s_step[s]), forever);
                wait := greatest(at + CASE WHEN n > 0 THEN 1 ELSE 0 END, now_us);
                reset_at[j] := wait;
            ELSE
                start := CASE WHEN s_month[s] THEN palisade.month_start(now_us) ELSE now_us - now_us % span END;
                IF start > at THEN
                    at := start;
                    n := 0;
                END IF;
                used[j] := n;
                wait := CASE WHEN s_month[s] THEN palisade.month_end(at) ELSE at + span END;
                reset_at[j] := wait;
            END IF;
            IF (changes OR op = 2) AND kind <> 0 THEN
                -- Rounded up to a whole window (a minute at least): see the table.
                room := greatest(span, 60000000);
                k_end[k] := CASE WHEN s_month[s] THEN wait ELSE (wait + room - 1) / room * room END;
            END IF;
        END LOOP;
    END LOOP;

    IF dirty_count > 0 THEN
        INSERT INTO palisade.bucket AS b (key, window_end, kind, at, n, hits)
        SELECT u.key, u.window_end, u.kind, u.at, u.n, CASE WHEN u.kind = 1 THEN u.hits END
          FROM unnest(p_keys, k_dirty, k_end, k_kind, k_at, k_n, k_hits)
               AS u (key, dirty, window_end, kind, at, n, hits)
         WHERE u.dirty
        ON CONFLICT (key) DO UPDATE
           SET window_end = excluded.window_end, kind = excluded.kind,
               at = excluded.at, n = excluded.n, hits = excluded.hits;
    END IF;
END $$;
