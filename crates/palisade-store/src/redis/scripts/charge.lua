#!lua
-- Evaluates decisions: each is a list of buckets, charged all or nothing (L-ATOMIC).
--
-- A translation of the pure functions of `palisade_core::limit`; names are kept.
-- KEYS    one per bucket, decision after decision
-- ARGV    one per decision: '<BBd' operation, buckets, now (-1: this server's clock),
--         then per bucket '<BI4I4I4d' flags, cost, limit, capacity, window in µs (0: month)
-- returns one string per decision: '<dBB' now, admitted, rebuilt,
--         then per bucket '<Bddd' kind, two numbers of its state, wait
--
-- The state returned is the one found (charge, peek) or left (refund); the caller
-- derives readings from it. Every number stays below 2^53, which a double holds exactly.

local pack, unpack_struct = struct.pack, struct.unpack
local byte, sub, floor = string.byte, string.sub, math.floor

local CHARGE, PEEK, REFUND, UNDO = 0, 1, 2, 3
local LOG, WHEEL, TOKENS, FIXED = 0, 1, 2, 3
local DENY, COUNT = 0, 2
local EMPTY, HITS, GCRA, WINDOW = 0, 1, 2, 3
local FITS, NEVER = -1, -2

local DAY = 86400000000
local HEADER = 15 -- bytes before the entries of a sliding bucket
local TEST_TTL_MS = 3600000

-- ---------------------------------------------------------------- ticks
-- A token bucket counts ticks of 2^-12 µs in 64 bits: kept as (µs, ticks), saturating.

local TICKS = 4096
local END = 2 ^ 52

local function mul(hi, lo, n)
  local low = lo * n
  local carry = floor(low / TICKS)
  local high = hi * n + carry
  if high >= END then return END - 1, TICKS - 1 end
  return high, low - carry * TICKS
end

local function add(ahi, alo, bhi, blo)
  local high, low = ahi + bhi, alo + blo
  if low >= TICKS then high, low = high + 1, low - TICKS end
  if high >= END then return END - 1, TICKS - 1 end
  return high, low
end

local function minus(ahi, alo, bhi, blo)
  local high, low = ahi - bhi, alo - blo
  if low < 0 then high, low = high - 1, low + TICKS end
  if high < 0 then return 0, 0 end
  return high, low
end

local function ceil_micros(hi, lo)
  if lo > 0 then return hi + 1 end
  return hi
end

-- Ticks per token: span * 4096 / limit, rounded up.
local function interval(q)
  local hi = floor(q.span / q.limit)
  local rest = (q.span - hi * q.limit) * TICKS
  local lo = floor(rest / q.limit)
  if lo * q.limit < rest then lo = lo + 1 end
  if lo == TICKS then return hi + 1, 0 end
  return hi, lo
end

-- ---------------------------------------------------------------- calendar

-- The first instant of the UTC month that `at` is in (days to civil date).
local function month_start(at)
  local days = floor(at / DAY)
  local shifted = days + 719468
  local era = floor(shifted / 146097)
  local doe = shifted - era * 146097
  local yoe = floor((doe - floor(doe / 1460) + floor(doe / 36524) - floor(doe / 146096)) / 365)
  local doy = doe - (365 * yoe + floor(yoe / 4) - floor(yoe / 100))
  local month = floor((5 * doy + 2) / 153)
  local day = doy - floor((153 * month + 2) / 5)
  return (days - day) * DAY
end

local function window_start(q, now)
  if q.month then return month_start(now) end
  return now - now % q.span
end

local function window_end(q, start)
  if q.month then return month_start(month_start(start) + 31 * DAY) end
  return start + q.span
end

-- ---------------------------------------------------------------- sliding log and wheel
-- Bytes: tag = 16 * instant width + count width, total (7), newest (7), entries.
-- An entry keeps its instant modulo 2^(8 * width): all lie within a window of `newest`.

local function format(c, wide, count)
  c.wide, c.count, c.size = wide, count, wide + count
  c.format = '<I' .. wide .. 'I' .. count
  c.modulo = 256 ^ wide
end

local function entry(c, at)
  local low, count = unpack_struct(c.format, c.bytes, at)
  return c.newest - (c.newest - low) % c.modulo, count
end

local function is_empty(c)
  return c.first > #c.bytes
end

local function forget(c)
  c.bytes, c.first, c.total, c.newest = '', 1, 0, 0
end

local function prune(c, q, now)
  local last = #c.bytes
  while c.first <= last do
    local at, count = entry(c, c.first)
    if at + q.span > now then return end
    c.total = c.total - count
    c.first = c.first + c.size
  end
  forget(c)
end

local function widen(c, wide, count)
  local old, parts = {}, {}
  for at = c.first, #c.bytes, c.size do
    old[#old + 1] = { entry(c, at) }
  end
  format(c, wide, count)
  for i, e in ipairs(old) do
    parts[i] = pack(c.format, e[1] % c.modulo, e[2])
  end
  c.bytes, c.first = table.concat(parts), 1
end

-- Bytes that hold every distance within a window and a slot.
local function width(q)
  local wide = 4
  while 256 ^ wide <= q.span + q.slot do wide = wide + 1 end
  return wide
end

local function append(c, q, now, cost)
  if cost == 0 then return end
  local at = now - now % q.slot + q.slot - 1
  if at < c.newest then at = c.newest end
  local wide, joined = width(q), cost
  if is_empty(c) then
    forget(c)
    format(c, wide, cost < 256 and 1 or 4)
  elseif at == c.newest then
    local _, count = entry(c, #c.bytes - c.size + 1)
    if count + cost < 2 ^ 32 then
      joined = count + cost
      c.bytes = sub(c.bytes, 1, #c.bytes - c.size)
    end
  end
  if c.wide < wide or joined >= 256 ^ c.count then
    widen(c, math.max(c.wide, wide), joined >= 256 and 4 or c.count)
  end
  c.bytes = c.bytes .. pack(c.format, at % c.modulo, joined)
  c.total, c.newest = c.total + cost, at
end

-- Takes up to `cost` out of the entry at `at`; answers what is left to take.
local function shrink(c, at, cost)
  local _, count = entry(c, at)
  local gone = math.min(cost, count)
  local rest = ''
  if gone < count then
    local low = unpack_struct(c.format, c.bytes, at)
    rest = pack(c.format, low, count - gone)
  end
  c.bytes = sub(c.bytes, 1, at - 1) .. rest .. sub(c.bytes, at + c.size)
  c.total = c.total - gone
  return cost - gone
end

local function pop_oldest(c, q, now, cost)
  prune(c, q, now)
  while cost > 0 and not is_empty(c) do
    cost = shrink(c, c.first, cost)
  end
  if is_empty(c) then forget(c) end
end

-- Takes back the hits that were put at `at`; what is no longer there, from the oldest.
local function pop_at(c, q, now, cost)
  if is_empty(c) then return end
  local instant = now - now % q.slot + q.slot - 1
  local at = #c.bytes - c.size + 1
  while cost > 0 and at >= c.first do
    local found = entry(c, at)
    if found < instant then break end
    if found == instant then cost = shrink(c, at, cost) end
    at = at - c.size
  end
  if cost > 0 then pop_oldest(c, q, now, cost) end
  if is_empty(c) then
    forget(c)
  else
    c.newest = entry(c, #c.bytes - c.size + 1)
  end
end

local function fits_hits(c, q, now)
  prune(c, q, now)
  local room = q.capacity - q.cost
  local held = c.total
  if held <= room then return FITS end
  for at = c.first, #c.bytes, c.size do
    local instant, count = entry(c, at)
    held = held - count
    if held <= room then return instant + q.span end
  end
  return FITS
end

-- ---------------------------------------------------------------- token bucket

local function fits_gcra(c, q, now)
  local hi, lo = c.hi, c.lo
  if hi < now then hi, lo = now, 0 end
  local ihi, ilo = interval(q)
  hi, lo = add(hi, lo, mul(ihi, ilo, q.cost))
  hi, lo = minus(hi, lo, mul(ihi, ilo, q.capacity))
  if hi > now or (hi == now and lo > 0) then return ceil_micros(hi, lo) end
  return FITS
end

local function take_gcra(c, q, now, cost)
  local hi, lo = now, 0
  if c.kind == GCRA and c.hi >= now then hi, lo = c.hi, c.lo end
  local ihi, ilo = interval(q)
  c.kind = GCRA
  c.hi, c.lo = add(hi, lo, mul(ihi, ilo, cost))
end

local function give_back_gcra(c, q, now)
  if c.hi < now then
    c.hi, c.lo = now, 0
    return
  end
  local ihi, ilo = interval(q)
  c.hi, c.lo = minus(c.hi, c.lo, mul(ihi, ilo, q.cost))
  if c.hi < now then c.hi, c.lo = now, 0 end
end

-- The smallest n, at most the capacity, with n intervals at or past the time ahead.
local function used_gcra(c, q, now)
  local ahi, alo = minus(c.hi, c.lo, now, 0)
  local ihi, ilo = interval(q)
  local low, high = 0, q.capacity
  while low < high do
    local middle = floor((low + high) / 2)
    local hi, lo = mul(ihi, ilo, middle)
    if hi > ahi or (hi == ahi and lo >= alo) then
      high = middle
    else
      low = middle + 1
    end
  end
  return low
end

-- ---------------------------------------------------------------- fixed window

-- A clock that went back stays in the window it was in.
local function current(c, q, now)
  local aligned = window_start(q, now)
  if aligned > c.start then return aligned, 0 end
  return c.start, c.used
end

-- ---------------------------------------------------------------- any bucket

local KIND_OF = { [LOG] = HITS, [WHEEL] = HITS, [TOKENS] = GCRA, [FIXED] = WINDOW }

local function fits(c, q, now)
  if q.cost > q.capacity then return NEVER end
  if c.kind == EMPTY then return FITS end
  if c.kind == HITS then return fits_hits(c, q, now) end
  if c.kind == GCRA then return fits_gcra(c, q, now) end
  local start, used = current(c, q, now)
  if used + q.cost > q.limit then return window_end(q, start) end
  return FITS
end

local function used(c, q, now)
  if c.kind == HITS then
    prune(c, q, now)
    return c.total
  end
  if c.kind == GCRA then return used_gcra(c, q, now) end
  local _, count = current(c, q, now)
  return count
end

local function put(c, q, now, cost)
  if q.algorithm == TOKENS then
    take_gcra(c, q, now, cost)
  elseif q.algorithm == FIXED then
    if c.kind == WINDOW then
      c.start, c.used = current(c, q, now)
    else
      c.kind, c.start, c.used = WINDOW, window_start(q, now), 0
    end
    c.used = c.used + cost
  else
    if c.kind == EMPTY then
      c.kind = HITS
      forget(c)
    end
    prune(c, q, now)
    append(c, q, now, cost)
  end
end

-- A changed algorithm keeps what was used, as if it were used now.
local function adopt(c, q, now)
  if c.kind == EMPTY or c.kind == KIND_OF[q.algorithm] then return end
  local held = math.min(used(c, q, now), q.capacity)
  c.kind = EMPTY
  if held >= 1 then put(c, q, now, held) end
end

local function expires_at(c, q)
  if c.kind == HITS then return c.newest + q.span end
  if c.kind == GCRA then return ceil_micros(c.hi, c.lo) end
  if c.kind == WINDOW then return window_end(q, c.start) end
  return 0
end

local function changed(c, q, now)
  c.dirty = true
  c.ttl_us = expires_at(c, q) - now
end

local function take(c, q, now)
  adopt(c, q, now)
  put(c, q, now, q.cost)
  changed(c, q, now)
end

local function give_back(c, q, now)
  adopt(c, q, now)
  if c.kind == HITS then
    pop_oldest(c, q, now, q.cost)
  elseif c.kind == GCRA then
    give_back_gcra(c, q, now)
  elseif c.kind == WINDOW and current(c, q, now) == c.start then
    c.used = math.max(0, c.used - q.cost)
  end
  changed(c, q, now)
end

-- Takes back exactly what a charge judged at `now` put in.
local function undo(c, q, now)
  if c.kind ~= KIND_OF[q.algorithm] then return end
  if c.kind == HITS then
    pop_at(c, q, now, q.cost)
  elseif c.kind == GCRA then
    give_back_gcra(c, q, now)
  elseif c.start == window_start(q, now) then
    c.used = math.max(0, c.used - q.cost)
  end
  c.dirty, c.keep_ttl = true, true
end

-- ---------------------------------------------------------------- bytes

local function is_sliding(raw, tag)
  local wide, count = floor(tag / 16), tag % 16
  local body = #raw - HEADER
  return wide >= 4 and wide <= 7 and (count == 1 or count == 4)
    and body > 0 and body % (wide + count) == 0
end

-- The bucket in `raw`, or nil if it cannot be read (F-CORRUPT).
local function decode(raw)
  local tag = byte(raw, 1)
  if tag == GCRA and #raw == 10 then
    local hi, lo = unpack_struct('<I7I2', raw, 2)
    if hi < END and lo < TICKS then return { kind = GCRA, hi = hi, lo = lo } end
  elseif tag == WINDOW and #raw == 15 then
    local start, count = unpack_struct('<I7I7', raw, 2)
    if start < 2 ^ 53 and count < 2 ^ 53 then
      return { kind = WINDOW, start = start, used = count }
    end
  elseif tag and is_sliding(raw, tag) then
    local c = { kind = HITS, bytes = raw, first = HEADER + 1 }
    format(c, floor(tag / 16), tag % 16)
    c.total, c.newest = unpack_struct('<I7I7', raw, 2)
    local entries = (#raw - HEADER) / c.size
    if c.total >= entries and c.total <= entries * 2 ^ 32 and c.newest < 2 ^ 53 then
      return c
    end
  end
  return nil
end

local function encode(c)
  if c.kind == GCRA then return pack('<BI7I2', GCRA, c.hi, c.lo) end
  if c.kind == WINDOW then return pack('<BI7I7', WINDOW, c.start, c.used) end
  return pack('<BI7I7', c.wide * 16 + c.count, c.total, c.newest) .. sub(c.bytes, c.first)
end

local function is_worth_keeping(c)
  if c.kind == EMPTY then return false end
  if c.kind == HITS and is_empty(c) then return false end
  return c.keep_ttl or c.ttl_us > 0
end

local function save(key, c, ttl_min)
  if not is_worth_keeping(c) then
    if c.stored then redis.call('DEL', key) end
    return
  end
  local bytes = encode(c)
  if c.keep_ttl and not c.ttl_us then
    redis.call('SET', key, bytes, 'KEEPTTL')
    return
  end
  local ttl = math.max(floor((c.ttl_us + 999) / 1000), ttl_min)
  if c.stored then
    redis.call('SET', key, bytes, 'PX', ttl)
  elseif not redis.call('SET', key, bytes, 'PX', ttl, 'NX') then
    -- MGET showed nothing, yet something is there: not a string.
    c.rebuilt = true
    redis.call('SET', key, bytes, 'PX', ttl)
  end
end

local function summary(c, wait)
  if c.kind == HITS then return pack('<Bddd', HITS, c.total, c.newest, wait) end
  if c.kind == GCRA then return pack('<Bddd', GCRA, c.hi, c.lo, wait) end
  if c.kind == WINDOW then return pack('<Bddd', WINDOW, c.start, c.used, wait) end
  return pack('<Bddd', EMPTY, 0, 0, wait)
end

-- ---------------------------------------------------------------- the call

local found = redis.call('MGET', unpack(KEYS))
local cells = {}

local function cell(index)
  local key = KEYS[index]
  local c = cells[key]
  if c then return c end
  local raw = found[index]
  if not raw then
    c = { kind = EMPTY }
  else
    c = decode(raw)
    if not c then c = { kind = EMPTY, rebuilt = true, dirty = true, ttl_us = 0 } end
    c.stored = true
  end
  cells[key] = c
  return c
end

local function bucket(arg, at)
  local flags, cost, limit, capacity, window = unpack_struct('<BI4I4I4d', arg, at)
  local algorithm = flags % 4
  local month = window == 0
  local span = month and 31 * DAY or window
  return {
    algorithm = algorithm, on_exceed = floor(flags / 4),
    cost = cost, limit = limit, capacity = capacity,
    month = month, span = span,
    slot = algorithm == WHEEL and floor((span + 63) / 64) or 1,
  }
end

local function charge(d)
  local admitted = true
  for i, q in ipairs(d.buckets) do
    local c = d.cells[i]
    local wait = fits(c, q, d.now)
    d.waits[i] = wait
    d.parts[i] = summary(c, wait)
    if wait ~= FITS and q.on_exceed == DENY then admitted = false end
  end
  if admitted and d.operation == CHARGE then
    for i, q in ipairs(d.buckets) do
      if d.waits[i] == FITS or q.on_exceed == COUNT then take(d.cells[i], q, d.now) end
    end
  end
  return admitted
end

local function refund(d)
  local back = d.operation == UNDO and undo or give_back
  for i, q in ipairs(d.buckets) do
    local c = d.cells[i]
    back(c, q, d.now)
    d.parts[i] = summary(c, fits(c, q, d.now))
  end
  return true
end

local clock
local function server_clock()
  if not clock then
    local time = redis.call('TIME')
    clock = tonumber(time[1]) * 1000000 + tonumber(time[2])
  end
  return clock
end

local decisions, next_key, ttl_min = {}, 1, 1
for index, arg in ipairs(ARGV) do
  local operation, count, now = unpack_struct('<BBd', arg)
  if now < 0 then
    now = server_clock()
  else
    ttl_min = TEST_TTL_MS
  end
  local d = { operation = operation, now = now, buckets = {}, cells = {}, waits = {}, parts = {}, rebuilt = 0 }
  for i = 1, count do
    d.buckets[i] = bucket(arg, 11 + (i - 1) * 21)
    local c = cell(next_key)
    c.owner = c.owner or d
    d.cells[i] = c
    next_key = next_key + 1
  end
  if operation == CHARGE or operation == PEEK then
    d.admitted = charge(d)
  else
    d.admitted = refund(d)
  end
  decisions[index] = d
end

for key, c in pairs(cells) do
  if c.dirty then save(key, c, ttl_min) end
  if c.rebuilt then c.owner.rebuilt = c.owner.rebuilt + 1 end
end

local replies = {}
for index, d in ipairs(decisions) do
  replies[index] = pack('<dBB', d.now, d.admitted and 1 or 0, d.rebuilt) .. table.concat(d.parts)
end
return replies
