-- Tenants' own policies.
CREATE TABLE palisade.rate_limit_policies (
    tenant_id  text        PRIMARY KEY CHECK (octet_length(tenant_id) BETWEEN 1 AND 512),
    version    bigint      NOT NULL DEFAULT 1 CHECK (version >= 0),
    limits     jsonb       NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now()
);

-- Other limits without another version get the next one: nodes keep the higher.
CREATE FUNCTION palisade.next_policy_version() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.limits IS DISTINCT FROM OLD.limits AND NEW.version = OLD.version THEN
        NEW.version := OLD.version + 1;
    END IF;
    NEW.updated_at := now();
    RETURN NEW;
END $$;

CREATE TRIGGER next_policy_version
    BEFORE UPDATE ON palisade.rate_limit_policies
    FOR EACH ROW EXECUTE FUNCTION palisade.next_policy_version();

-- Audit events. A batch that may have been written already is written again under
-- the same name, and each of its lines stays single.
CREATE TABLE palisade.audit (
    batch    uuid        NOT NULL,
    line     integer     NOT NULL,
    at       timestamptz NOT NULL,
    event    text        NOT NULL,
    severity text        NOT NULL,
    detail   jsonb       NOT NULL,
    PRIMARY KEY (batch, line)
);

CREATE INDEX audit_at ON palisade.audit (at);
