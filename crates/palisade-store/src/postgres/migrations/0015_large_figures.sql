-- Figures and costs up to 2^47 (B-UNIT). The columns hold them as they are; a bucket counts no more
-- than 2^48 - 1, and what a token bucket used carries over to another algorithm as a whole.
DO $$
DECLARE
    change text[];
    written text;
BEGIN
    FOREACH change SLICE 1 IN ARRAY ARRAY[
        ['used', '4294967295', '281474976710655'],
        ['decide', 'IF cost = 0 AND kind = 0 THEN',
         'cost := greatest(least(cost, 281474976710655 - CASE kind WHEN 1 THEN n ELSE 0 END), 0);
                    IF cost = 0 AND kind = 0 THEN'],
        ['decide', 'IF kind = 3 AND start <= at THEN',
         'cost := least(cost, 281474976710655 - CASE WHEN kind = 3 AND start <= at THEN n ELSE 0 END);
                    IF kind = 3 AND start <= at THEN']
    ] LOOP
        written := (SELECT pg_get_functiondef(p.oid) FROM pg_proc p
                     WHERE p.pronamespace = 'palisade'::regnamespace AND p.proname = change[1]);
        IF strpos(written, change[2]) = 0 THEN
            RAISE EXCEPTION 'palisade.% is not the one that this step changes', change[1];
        END IF;
        EXECUTE replace(written, change[2], change[3]);
    END LOOP;
END $$;
