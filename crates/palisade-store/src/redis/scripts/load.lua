#!lua flags=no-writes
-- Reads records and the clock. KEYS the records; ARGV[1] now (-1: this server's clock).
-- Returns now, then per record its bytes, nil, or 0 if it is not a record at all.

local now = tonumber(ARGV[1])
if now < 0 then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000000 + tonumber(time[2])
end
local reply = { now }
for i, key in ipairs(KEYS) do
  local raw = redis.pcall('GET', key)
  if type(raw) == 'table' then raw = 0 end
  reply[i + 1] = raw
end
return reply
