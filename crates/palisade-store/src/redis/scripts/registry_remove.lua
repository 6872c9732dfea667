#!lua
-- Removes an entry. KEYS[1] the entries, KEYS[2] the version; ARGV: now, id.
-- Returns 1 if it was in force, else 0.

local now = tonumber(ARGV[1])
if now < 0 then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000000 + tonumber(time[2])
end

local raw = redis.call('HGET', KEYS[1], ARGV[2])
if not raw then return 0 end
redis.call('HDEL', KEYS[1], ARGV[2])
local version = tonumber(redis.call('GET', KEYS[2])) or 0
redis.call('SET', KEYS[2], string.format('%.0f', math.max(version + 1, now)))
if #raw < 7 then return 0 end
local expires = struct.unpack('<I7', raw)
if expires > 0 and expires <= now then return 0 end
return 1
