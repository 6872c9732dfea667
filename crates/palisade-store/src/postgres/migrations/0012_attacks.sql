-- Attacks that nodes have declared, and classes for which operators have set the state (AD-ATTACK).
INSERT INTO palisade.registry (name) VALUES ('attacks') ON CONFLICT DO NOTHING;
