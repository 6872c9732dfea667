-- Charges that are made while anything is left, below zero if need be (B-OVERDRAFT): on
-- exceeding, 3 overdraft. And a bound on what a token bucket can owe: one window's rate (B-BOUND).
DO $$
DECLARE
    decide text := (SELECT pg_get_functiondef(p.oid) FROM pg_proc p
                     WHERE p.pronamespace = 'palisade'::regnamespace AND p.proname = 'decide');
    change text[];
BEGIN
    FOREACH change SLICE 1 IN ARRAY ARRAY[
        -- Judged by what it needs, charged by what it costs.
        ['room := s_capacity[s] - cost;',
         'IF c_exceed[j] = 3 THEN cost := 1; END IF;
            room := s_capacity[s] - cost;'],
        ['IF c_exceed[j] = 0 THEN ok := false; END IF;',
         'IF c_exceed[j] IN (0, 3) THEN ok := false; END IF;'],
        -- What would make a deeper debt is forgiven.
        ['at := now_us + ticks / 4096;',
         'room := s_burst[s] + span * 4096;
                    IF ticks > room THEN ticks := greatest(room, ticks - s_step[s] * cost); END IF;
                    at := now_us + ticks / 4096;'],
        ['least(gap + s_step[s]::numeric * cost + now_us::numeric * 4096, tat_max);',
         'greatest(gap, least(gap + s_step[s]::numeric * cost, s_burst[s] + span::numeric * 4096));
                    gap := least(gap + now_us::numeric * 4096, tat_max);']
    ] LOOP
        IF strpos(decide, change[1]) = 0 THEN
            RAISE EXCEPTION 'palisade.decide is not the one that this step changes';
        END IF;
        decide := replace(decide, change[1], change[2]);
    END LOOP;
    EXECUTE decide;
END $$;
