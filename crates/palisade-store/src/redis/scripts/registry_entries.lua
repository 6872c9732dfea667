#!lua flags=no-writes
-- The whole registry. KEYS[1] the entries, KEYS[2] the version; ARGV: now, version seen
-- ('' none). Returns nil if nothing changed, else version, now, then ids and entries.

local version = redis.call('GET', KEYS[2]) or '0'
if version == ARGV[2] then return false end
local now = tonumber(ARGV[1])
if now < 0 then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000000 + tonumber(time[2])
end
return { version, now, redis.call('HGETALL', KEYS[1]) }
