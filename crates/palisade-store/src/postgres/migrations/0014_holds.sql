-- Charges that a bucket of hits counts from another instant than now (B-EXPIRE, B-SHARE). Their
-- specification has, in place of the slot, a number below zero: 1 and four times the instant (or
-- how long ago it is), plus 2 for an instant, plus 1 on a wheel.

-- The instant at which such a charge is kept: what was used earlier shares the slots of other hits,
-- a hold ends exactly.
CREATE FUNCTION palisade.counts_from(slot bigint, span bigint, now_us bigint) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    code bigint := -slot - 1;
    at bigint := least(code / 4, now_us);
BEGIN
    IF slot > 0 THEN RETURN now_us - now_us % slot + slot - 1; END IF;
    IF code % 4 < 2 THEN RETURN greatest(now_us - code / 4, 0); END IF;
    slot := CASE WHEN code % 2 = 1 THEN (span + 63) / 64 ELSE 1 END;
    RETURN at - at % slot + slot - 1;
END $$;

-- The hits with `cost` more in their place.
CREATE FUNCTION palisade.with_hit(h bigint[], at bigint, cost bigint) RETURNS bigint[]
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    p int := 1;
BEGIN
    WHILE p < cardinality(h) AND h[p] < at LOOP p := p + 2; END LOOP;
    IF h[p] = at THEN
        h[p + 1] := h[p + 1] + cost;
        RETURN h;
    END IF;
    RETURN h[:p - 1] || ARRAY[at, cost] || h[p:];
END $$;

DO $$
DECLARE
    decide text := (SELECT pg_get_functiondef(p.oid) FROM pg_proc p
                     WHERE p.pronamespace = 'palisade'::regnamespace AND p.proname = 'decide');
    change text[];
BEGIN
    FOREACH change SLICE 1 IN ARRAY ARRAY[
        ['slot_at := now_us - now_us % s_slot[s] + s_slot[s] - 1;
                    p := 1;',
         'slot_at := palisade.counts_from(s_slot[s], span, now_us);
                    p := 1;'],
        -- What is carried over from another algorithm counts from now.
        ['IF n > 0 THEN cost := cost + n; END IF;
                    kind := 0;',
         'kind := 0;
                    IF n > 0 AND s_slot[s] < 0 THEN
                        room := CASE WHEN (-s_slot[s] - 1) % 2 = 1 THEN (span + 63) / 64 ELSE 1 END;
                        h := ARRAY[palisade.counts_from(room, span, now_us), n];
                        kind := 1;
                    ELSIF n > 0 THEN
                        cost := cost + n;
                    END IF;'],
        ['IF h[len - 1] >= slot_at THEN
                            h[len]',
         'IF h[len - 1] > slot_at AND s_slot[s] < 0 THEN
                            IF cost > 0 THEN h := palisade.with_hit(h, slot_at, cost); END IF;
                        ELSIF h[len - 1] >= slot_at THEN
                            h[len]']
    ] LOOP
        IF strpos(decide, change[1]) = 0 THEN
            RAISE EXCEPTION 'palisade.decide is not the one that this step changes';
        END IF;
        decide := replace(decide, change[1], change[2]);
    END LOOP;
    EXECUTE decide;
END $$;
