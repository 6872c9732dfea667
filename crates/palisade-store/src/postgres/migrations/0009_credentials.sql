-- API keys and OAuth clients that operators registered.
INSERT INTO palisade.registry (name) VALUES ('api_keys'), ('clients') ON CONFLICT DO NOTHING;

-- API keys and OAuth clients of a policy source. Only hashes of keys are kept.
CREATE TABLE palisade.rate_limit_api_keys (
    hash text PRIMARY KEY,
    tier text NOT NULL,
    scopes jsonb,
    name text,
    usage_of text
);
CREATE TABLE palisade.rate_limit_clients (
    client_id text PRIMARY KEY,
    type text NOT NULL
);
