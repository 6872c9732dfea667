-- Calendar years beside calendar months. A window that follows the calendar says by its
-- length which of the two it is: 31 days, or 366.

CREATE FUNCTION palisade.calendar_start(us bigint, span bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS
$$ SELECT extract(epoch FROM date_trunc(CASE WHEN span > 2678400000000 THEN 'year' ELSE 'month' END,
       timestamp 'epoch' + make_interval(secs => us / 1000000)))::bigint * 1000000 $$;

CREATE FUNCTION palisade.calendar_end(us bigint, span bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS
$$ SELECT extract(epoch FROM date_trunc(CASE WHEN span > 2678400000000 THEN 'year' ELSE 'month' END,
       timestamp 'epoch' + make_interval(secs => us / 1000000))
       + CASE WHEN span > 2678400000000 THEN interval '1 year' ELSE interval '1 month' END
       )::bigint * 1000000 $$;

-- The functions that asked for months ask for these; nothing else in them changes.
DO $$
DECLARE
    asking record;
    span text;
BEGIN
    FOR asking IN
        SELECT p.oid, p.proname FROM pg_proc p
         WHERE p.pronamespace = 'palisade'::regnamespace
           AND p.proname IN ('used', 'decide', 'give_back')
    LOOP
        span := CASE asking.proname WHEN 'used' THEN 'span' ELSE 's_span[s]' END;
        EXECUTE regexp_replace(
            pg_get_functiondef(asking.oid),
            'palisade\.month_(start|end)\((\w+)\)',
            'palisade.calendar_\1(\2, ' || span || ')', 'g');
    END LOOP;
END $$;
