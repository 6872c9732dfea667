#!lua
-- Adds or replaces an entry. KEYS[1] the entries (a hash), KEYS[2] the version;
-- ARGV: now (-1: this server's clock), id, expiry ('' never), bytes, most entries.
-- An entry is '<I7' expiry (0: never), then its bytes. Returns 1, or 0 if it is full.

local now = tonumber(ARGV[1])
if now < 0 then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000000 + tonumber(time[2])
end
local id, expires = ARGV[2], tonumber(ARGV[3]) or 0

local function sweep()
  local all = redis.call('HGETALL', KEYS[1])
  for i = 1, #all, 2 do
    local until_ = #all[i + 1] >= 7 and struct.unpack('<I7', all[i + 1]) or 1
    if until_ > 0 and until_ <= now then redis.call('HDEL', KEYS[1], all[i]) end
  end
end

local most = tonumber(ARGV[5])
if redis.call('HEXISTS', KEYS[1], id) == 0 and redis.call('HLEN', KEYS[1]) >= most then
  sweep()
  if redis.call('HLEN', KEYS[1]) >= most then return 0 end
end
redis.call('HSET', KEYS[1], id, struct.pack('<I7', expires) .. ARGV[4])

-- Never a version that was in use before the data was lost: it grows with the clock.
local version = tonumber(redis.call('GET', KEYS[2])) or 0
redis.call('SET', KEYS[2], string.format('%.0f', math.max(version + 1, now)))
return 1
