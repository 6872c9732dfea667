-- A sign of life that only a server which takes writes can give: a standby, a read-only
-- server or one with a full disk answers every read.
CREATE TABLE palisade.probe (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    at   bigint NOT NULL
) WITH (fillfactor = 10, autovacuum_vacuum_threshold = 1000);
INSERT INTO palisade.probe (at) VALUES (0);

-- Nodes that probe at the same moment do not wait for each other: whoever finds the row
-- locked has the proof already, for its holder is writing.
CREATE FUNCTION palisade.probe(p_now bigint) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    UPDATE palisade.probe SET at = palisade.clock()
     WHERE one IN (SELECT p.one FROM palisade.probe p FOR UPDATE SKIP LOCKED);
    RETURN coalesce(p_now, palisade.clock());
END $$;
