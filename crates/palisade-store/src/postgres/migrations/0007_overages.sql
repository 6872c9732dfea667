-- What API keys used beyond their quotas, kept for the month after.
INSERT INTO palisade.registry (name) VALUES ('overages') ON CONFLICT DO NOTHING;
