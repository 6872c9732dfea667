#!lua
-- Counts uses that lie in the future as of now: the clock has stepped back since (F-CLOCK).
--
-- KEYS    the buckets, each once; `charge.lua` says how their bytes are laid out
-- ARGV[1] the instant, 0: this server's clock
-- ARGV[2] per bucket '<dddd': slot in µs, µs and ticks of a full burst, first instant of the
--         present aligned window

local unpack_struct, pack, call = struct.unpack, struct.pack, redis.call

local now = tonumber(ARGV[1])
if now == 0 then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

local function hits(raw, latest)
  local tag, life, total, newest, top = unpack_struct('<BBI6I7I4', raw)
  if newest <= latest then return raw end
  local count, first = tag % 16, 20
  if count == 6 then
    if #raw < 21 then return raw end
    top, first = unpack_struct('<I6', raw, 16), 22
  end
  local wide = (tag - 64 - count) / 16
  local layout = '<I' .. wide .. 'I' .. count
  local entries = {}
  local function add(at, n)
    if at > latest then at = latest end
    local last = entries[#entries]
    -- Hits of one instant are kept together.
    if last and last[1] == at then
      last[2] = last[2] + n
    else
      entries[#entries + 1] = { at, n }
    end
  end
  for at = first, #raw, wide + count do
    local low, n = unpack_struct(layout, raw, at)
    add(newest - (newest - low) % 256 ^ wide, n)
  end
  add(newest, top)
  local last, parts = table.remove(entries), {}
  for _, e in ipairs(entries) do
    if e[2] > 255 then count = math.max(count, 4) end
    if e[2] >= 2 ^ 32 then count = 6 end
  end
  if last[2] >= 2 ^ 32 then count = 6 end
  layout = '<I' .. wide .. 'I' .. count
  for i, e in ipairs(entries) do
    parts[i] = pack(layout, e[1] % 256 ^ wide, e[2])
  end
  local head = count == 6 and '<BBI6I7I6' or '<BBI6I7I4'
  return pack(head, 64 + wide * 16 + count, life, total, last[1], last[2])
    .. table.concat(parts)
end

local function tokens(raw, burst_hi, burst_lo)
  local tag, life, hi, lo = unpack_struct('<BBI7I2', raw)
  local full = now + burst_hi
  if hi < full or (hi == full and lo <= burst_lo) then return raw end
  return pack('<BBI7I2', tag, life, full, burst_lo)
end

local function window(raw, aligned)
  local tag, life, start, used = unpack_struct('<BBI7I6', raw)
  if start <= now then return raw end
  return pack('<BBI7I6', tag, life, aligned, used)
end

local at = 1
for i, key in ipairs(KEYS) do
  local slot, burst_hi, burst_lo, aligned
  slot, burst_hi, burst_lo, aligned, at = unpack_struct('<dddd', ARGV[2], at)
  local raw = call('GET', key)
  local pulled, tag = raw, raw and #raw > 0 and string.byte(raw, 1)
  if tag == 4 and #raw == 11 then
    pulled = tokens(raw, burst_hi, burst_lo)
  elseif tag == 5 and #raw == 15 then
    pulled = window(raw, aligned)
  elseif tag and tag > 64 and #raw >= 19 then
    pulled = hits(raw, now - now % slot + slot - 1)
  end
  -- The end that the key has is later than needed, which does no harm.
  if pulled ~= raw then call('SET', key, pulled, 'KEEPTTL') end
end
return 1
