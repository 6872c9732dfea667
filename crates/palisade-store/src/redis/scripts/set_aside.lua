#!lua
-- Moves a record that cannot be read out of the way (F-CORRUPT).
-- KEYS[1] the record, KEYS[2] where it goes; ARGV[1] how long it stays, in ms.

if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
redis.call('RENAME', KEYS[1], KEYS[2])
redis.call('PEXPIRE', KEYS[2], ARGV[1])
return 1
