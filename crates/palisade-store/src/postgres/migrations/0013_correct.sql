-- Corrects buckets once (B-ONCE): writes a record by compare-and-swap and, if it was written,
-- makes the first decision's charges and gives back the second one's, each taken at its `c_at`.
-- The other arguments are those of `palisade.give_back`. The record is locked before the
-- buckets, and these in the order of `p_keys`, so no two calls wait for each other.
--
-- `marked`: 0 the record has changed, nothing was done, and nothing else is answered; 1 done;
-- 2 the record was there, nothing was done, and the answer is that of a peek.
CREATE FUNCTION palisade.correct(
    p_now bigint, p_keys text[], p_need boolean[], p_create boolean[],
    s_kind smallint[], s_month boolean[], s_capacity bigint[], s_span bigint[],
    s_slot bigint[], s_step bigint[], s_burst bigint[],
    d_op smallint[], d_last int[],
    c_key int[], c_spec int[], c_cost bigint[], c_exceed smallint[], c_at bigint[],
    m_kind smallint, m_digest bytea, m_expected bigint, m_body bytea, m_expires bigint,
    OUT now_us bigint, OUT admitted boolean[], OUT rebuilt int[],
    OUT used bigint[], OUT reset_at bigint[], OUT retry_at bigint[], OUT marked int
) LANGUAGE plpgsql AS $$
DECLARE
    n CONSTANT int := d_last[1];
    back CONSTANT int := d_last[2] - n;
    more record;
    none CONSTANT boolean[] := array_fill(false, ARRAY[cardinality(p_keys)]);
BEGIN
    -- A mark that has expired guards nothing: the change may have been made, and its mark gone.
    IF m_expires > coalesce(p_now, palisade.clock()) AND palisade.commit(p_now, ARRAY[m_kind], ARRAY[m_digest], ARRAY[m_expected], ARRAY[m_body],
            ARRAY[m_expires]) THEN
        marked := 1;
    ELSIF EXISTS (SELECT FROM palisade.record r
                   WHERE r.kind = m_kind AND r.digest = m_digest
                     AND r.expires_at > coalesce(p_now, palisade.clock())
                     AND r.revision = m_expected + 1 AND r.bytes = m_body) THEN
        marked := 2;
        SELECT d.* INTO now_us, admitted, rebuilt, used, reset_at, retry_at
          FROM palisade.decide(
              p_now, p_keys, none, none, s_kind, s_month, s_capacity, s_span, s_slot, s_step,
              s_burst, ARRAY[1, 1]::smallint[], d_last, c_key, c_spec, c_cost, c_exceed) d;
        RETURN;
    ELSE
        marked := 0;
        RETURN;
    END IF;

    -- Also where nothing is charged: it locks all buckets, and fixes the instant.
    SELECT d.* INTO more
      FROM palisade.decide(
          p_now, p_keys, p_need, p_create, s_kind, s_month, s_capacity, s_span, s_slot, s_step,
          s_burst, ARRAY[0]::smallint[], ARRAY[n],
          c_key[:n], c_spec[:n], c_cost[:n], c_exceed[:n]) d;
    now_us := more.now_us;
    SELECT more.admitted || b.admitted, more.rebuilt || b.rebuilt, more.used || b.used,
           more.reset_at || b.reset_at, more.retry_at || b.retry_at
      INTO admitted, rebuilt, used, reset_at, retry_at
      FROM palisade.give_back(
          now_us, p_keys, none, none, s_kind, s_month, s_capacity, s_span, s_slot, s_step,
          s_burst, ARRAY[1]::smallint[], ARRAY[back],
          c_key[n + 1:], c_spec[n + 1:], c_cost[n + 1:], c_exceed[n + 1:], c_at[n + 1:]) b;
END $$;
