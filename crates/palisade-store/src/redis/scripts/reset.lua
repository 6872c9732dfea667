#!lua
-- Clears buckets, all in one go.

return redis.call('UNLINK', unpack(KEYS))
