#!lua
-- Writes records if none has changed since it was read: compare-and-swap on revisions.
-- KEYS the records; ARGV[1] now (-1: this server's clock), then per record: the revision
-- read (0: none), the instant it expires, 'w' or 'd' (write, delete), the bytes.
-- A stored record is '<I7I7' revision, expiry, then its bytes. Returns 1, or 0 on a conflict.

local EVERY = 4
local HEADER = 14
local TEST_TTL_MS = 3600000

local now = tonumber(ARGV[1])
local ttl_min = TEST_TTL_MS
if now < 0 then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000000 + tonumber(time[2])
  ttl_min = 1
end

-- The revision in force, 0 if there is none, nil if it cannot be read.
local function revision(key)
  local raw = redis.pcall('GET', key)
  if not raw then return 0 end
  if type(raw) == 'table' or #raw < HEADER then return nil end
  local found, expires = struct.unpack('<I7I7', raw)
  if expires <= now then return 0 end
  return found
end

for i, key in ipairs(KEYS) do
  if revision(key) ~= tonumber(ARGV[(i - 1) * EVERY + 2]) then return 0 end
end

for i, key in ipairs(KEYS) do
  local at = (i - 1) * EVERY + 2
  local expires = tonumber(ARGV[at + 1])
  if ARGV[at + 2] == 'd' or expires <= now then
    redis.call('DEL', key)
  else
    local bytes = struct.pack('<I7I7', tonumber(ARGV[at]) + 1, expires) .. ARGV[at + 3]
    local ttl = math.max(math.ceil((expires - now) / 1000), ttl_min)
    redis.call('SET', key, bytes, 'PX', ttl)
  end
end
return 1
