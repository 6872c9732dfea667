#!lua
-- Evaluates decisions: each is a list of buckets, charged all or nothing (L-ATOMIC).
--
-- A translation of the pure functions of `palisade_core::limit`, compared with them
-- on random sequences. Every number stays below 2^53, which a double holds exactly;
-- `x - x % 1` rounds down without a call.
--
-- KEYS    the buckets, each once
-- ARGV    one per decision: '<BBd' operation, buckets, now (-1: this server's clock),
--         then per bucket '<I2BI4I4I4d' its key's place, flags, cost, limit, capacity,
--         window in µs (0: month)
-- returns one string per decision: '<dBB' now, admitted, rebuilt,
--         then per bucket '<Bddd' kind, two numbers of its state, wait
--
-- The state returned is the one found (charge, peek) or left (refund); the caller
-- derives readings from it.
--
-- A bucket's bytes begin with a tag:
--   tokens   2, µs (7), ticks of 2^-12 µs (2)            the arrival time, 64 bits in all
--   window   3, start (7), count (7)
--   hits     16 * w + c, total (7), newest (7), then entries, oldest first: an instant
--            modulo 256^w (all lie within a window of the newest) and c bytes of hits
--
-- Redis makes every function anew on each call, so what is rarely needed is made only
-- when it is: see `rare` at the end of the algorithms.

local unpack_struct, pack = struct.unpack, struct.pack
local byte, sub = string.byte, string.sub

local EMPTY, HITS, TOKENS, WINDOW = 0, 1, 2, 3
local FITS, NEVER = -1, -2
local DAY = 86400000000

-- A lane judges a bucket of its own kind: (bytes or false, now, cost, counts, limit,
-- capacity, span, slot) → wait, two numbers of the state and, if the cost can be taken
-- or `counts` all the same, the new bytes and the µs until they no longer matter.
-- It answers nothing about bytes that cannot be read (F-CORRUPT).

-- ---------------------------------------------------------------- token bucket

local function tokens(raw, now, cost, counts, limit, capacity, span)
  local found_hi, found_lo, hi, lo = 0, 0, now, 0
  if raw then
    if #raw ~= 10 then return nil end
    found_hi, found_lo = unpack_struct('<I7I2', raw, 2)
    if found_hi >= 2 ^ 52 or found_lo >= 4096 then return nil end
    if found_hi >= now then hi, lo = found_hi, found_lo end
  end
  -- Ticks per token: span * 4096 / limit, rounded up.
  local ihi = (span - span % limit) / limit
  local rest = (span - ihi * limit) * 4096
  local ilo = (rest - rest % limit) / limit
  if rest % limit > 0 then ilo = ilo + 1 end
  -- After the cost; saturates at 64 bits of ticks.
  local low = lo + ilo * cost
  lo = low % 4096
  hi = hi + ihi * cost + (low - lo) / 4096
  if hi >= 2 ^ 52 then hi, lo = 2 ^ 52 - 1, 4095 end
  -- Allowed once the burst reaches back to it.
  low = ilo * capacity
  local burst_lo = low % 4096
  local at, ticks = hi - ihi * capacity - (low - burst_lo) / 4096, lo - burst_lo
  if ticks < 0 then at, ticks = at - 1, ticks + 4096 end
  if ticks > 0 then at = at + 1 end
  local wait = FITS
  if cost > capacity then
    wait = NEVER
  elseif at > now then
    wait = at
  end
  if wait ~= FITS and not counts then return wait, found_hi, found_lo end
  local ends = lo > 0 and hi + 1 or hi
  return wait, found_hi, found_lo, pack('<BI7I2', TOKENS, hi, lo), ends - now
end

-- ---------------------------------------------------------------- fixed window

-- The first instant of the UTC month that `at` is in: days to civil date.
local function month_start(at)
  local days = (at - at % DAY) / DAY
  local shifted = days + 719468
  local doe = shifted % 146097
  local yoe = doe - (doe - doe % 1460) / 1460 + (doe - doe % 36524) / 36524
    - (doe - doe % 146096) / 146096
  yoe = (yoe - yoe % 365) / 365
  local doy = doe - 365 * yoe - (yoe - yoe % 4) / 4 + (yoe - yoe % 100) / 100
  local month = (5 * doy + 2 - (5 * doy + 2) % 153) / 153
  local day = doy - (153 * month + 2 - (153 * month + 2) % 5) / 5
  return (days - day) * DAY
end

-- That and the first instant of the next; decisions of one call are mostly of one month.
local month_from, month_to = 0, 0
local function month_of(at)
  if at < month_from or at >= month_to then
    month_from = month_start(at)
    month_to = month_start(month_from + 31 * DAY)
  end
  return month_from, month_to
end

-- `slot` is 0 for a calendar month.
local function window(raw, now, cost, counts, limit, capacity, span, slot)
  local found_start, found_used = 0, 0
  if raw then
    if #raw ~= 15 then return nil end
    found_start, found_used = unpack_struct('<I7I7', raw, 2)
    if found_start >= 2 ^ 53 or found_used >= 2 ^ 53 then return nil end
  end
  local start, used = found_start, found_used
  local aligned = slot == 0 and month_of(now) or now - now % span
  -- A clock that went back stays in the window it was in.
  if aligned > start then start, used = aligned, 0 end
  local ends = start + span
  if slot == 0 then
    local _
    _, ends = month_of(start)
  end
  local wait = FITS
  if cost > capacity then
    wait = NEVER
  elseif used + cost > limit then
    wait = ends
  end
  if wait ~= FITS and not counts then return wait, found_start, found_used end
  return wait, found_start, found_used, pack('<BI7I7', WINDOW, start, used + cost), ends - now
end

-- ---------------------------------------------------------------- sliding log and wheel

local rare

local function format(wide, count)
  if count ~= 1 and count ~= 4 then return nil end
  if wide == 4 then return count == 1 and '<I4I1' or '<I4I4' end
  if wide == 5 then return count == 1 and '<I5I1' or '<I5I4' end
  if wide == 6 then return count == 1 and '<I6I1' or '<I6I4' end
  if wide == 7 then return count == 1 and '<I7I1' or '<I7I4' end
end

-- The log is a wheel with slots of 1 µs: a hit is kept at the last instant of its slot.
local function hits(raw, now, cost, counts, limit, capacity, span, slot)
  if slot == 0 then slot = 1 end
  local at = now - now % slot + slot - 1
  local reach = span + slot
  local need = reach < 2 ^ 32 and 4 or reach < 2 ^ 40 and 5 or reach < 2 ^ 48 and 6 or 7
  local total, newest, wide, count, layout, modulo = 0, 0, need, cost < 256 and 1 or 4
  local first, last = 1, 0
  if raw then
    first, last = 16, #raw
    if last < 16 then return nil end
    local tag
    tag, total, newest = unpack_struct('<BI7I7', raw)
    if tag == 65 then
      wide, count, layout, modulo = 4, 1, '<I4I1', 2 ^ 32
    else
      count = tag % 16
      wide = (tag - count) / 16
      layout, modulo = format(wide, count), 256 ^ wide
    end
    local entries = (last - 15) / (wide + count)
    if not layout or entries % 1 > 0 or newest >= 2 ^ 53
      or total < entries or total >= entries * 2 ^ 32 then
      return nil
    end
  end
  -- What is a window old is out.
  while first <= last do
    local low, n = unpack_struct(layout, raw, first)
    if newest - (newest - low) % modulo + span > now then break end
    total = total - n
    first = first + wide + count
  end
  if first > last then
    total, newest, wide, count = 0, 0, need, cost < 256 and 1 or 4
    layout, modulo = format(wide, count), 256 ^ wide
  end
  -- Fits now, or when enough of the oldest have left.
  local wait, room, held, scan = FITS, capacity - cost, total, first
  if room < 0 then
    wait = NEVER
  else
    while held > room and scan <= last do
      local low, n = unpack_struct(layout, raw, scan)
      held = held - n
      scan = scan + wide + count
      if held <= room then wait = newest - (newest - low) % modulo + span end
    end
  end
  if wait ~= FITS and not counts then return wait, total, newest end
  if cost == 0 then return wait, total, newest, total > 0 and raw, newest + span - now end
  -- Hits of one instant share an entry.
  local joined, kept, after = cost, last, newest
  if at > newest then after = at end
  if after == newest and total > 0 then
    local _, n = unpack_struct(layout, raw, last - wide - count + 1)
    if n + cost < 2 ^ 32 then joined, kept = n + cost, last - wide - count end
  end
  if wide < need or joined >= 256 ^ count then
    local wider = rare().recode(raw, math.max(wide, need), joined >= 256 and 4 or count)
    return hits(wider, now, cost, counts, limit, capacity, span, slot)
  end
  local bytes = pack('<BI7I7', wide * 16 + count, total + cost, after)
    .. (total > 0 and sub(raw, first, kept) or '') .. pack(layout, after % modulo, joined)
  return wait, total, newest, bytes, after + span - now
end

-- ---------------------------------------------------------------- any bucket

-- The kind that bytes claim to be.
local function kind_of(raw)
  local tag = byte(raw, 1)
  if tag == TOKENS or tag == WINDOW then return tag end
  return HITS
end

local function lane_of(kind)
  if kind == TOKENS then return tokens end
  if kind == WINDOW then return window end
  return hits
end

local made
rare = function()
  if made then return made end

  -- Entries as a list of instant, hits.
  local function read(raw)
    local tag, _, newest = unpack_struct('<BI7I7', raw)
    local count = tag % 16
    local wide = (tag - count) / 16
    local list = {}
    for at = 16, #raw, wide + count do
      local low, n = unpack_struct(format(wide, count), raw, at)
      list[#list + 1] = { newest - (newest - low) % 256 ^ wide, n }
    end
    return list, wide, count
  end

  -- The same as bytes; false if there are none.
  local function write(list, wide, count)
    local parts, total = {}, 0
    for i, e in ipairs(list) do
      parts[i] = pack(format(wide, count), e[1] % 256 ^ wide, e[2])
      total = total + e[2]
    end
    if total == 0 then return false end
    return pack('<BI7I7', wide * 16 + count, total, list[#list][1]) .. table.concat(parts)
  end

  local function recode(raw, wide, count)
    return write(read(raw), wide, count)
  end

  -- Takes `cost` out of the entries that `picks` says, the one at `from` first.
  local function drain(list, cost, from, step, picks)
    local i = from
    while cost > 0 and list[i] do
      local e = list[i]
      if picks(e[1]) then
        local gone = math.min(cost, e[2])
        e[2], cost = e[2] - gone, cost - gone
      end
      i = i + step
    end
    return cost
  end

  local function without_empty(list)
    local kept = {}
    for _, e in ipairs(list) do
      if e[2] > 0 then kept[#kept + 1] = e end
    end
    return kept
  end

  -- A refund gives back the oldest hits: no window slice is exceeded.
  local function give_back_hits(raw, now, q)
    local list, wide, count = read(raw)
    local live = function(at) return at + q.span > now end
    for _, e in ipairs(list) do
      if not live(e[1]) then e[2] = 0 end
    end
    drain(list, q.cost, 1, 1, live)
    return write(without_empty(list), wide, count)
  end

  -- Takes back the hits put in at `now`; what is no longer there, from the oldest.
  local function undo_hits(raw, now, q)
    local list, wide, count = read(raw)
    local instant = now - now % q.slot + q.slot - 1
    local own = function(at) return at == instant end
    local left = drain(list, q.cost, #list, -1, own)
    drain(list, left, 1, 1, function() return true end)
    return write(without_empty(list), wide, count)
  end

  local function interval(q)
    local ihi = (q.span - q.span % q.limit) / q.limit
    local rest = (q.span - ihi * q.limit) * 4096
    return ihi, math.ceil(rest / q.limit)
  end

  local function times(hi, lo, n)
    local low = lo * n
    local high = hi * n + (low - low % 4096) / 4096
    if high >= 2 ^ 52 then return 2 ^ 52 - 1, 4095 end
    return high, low % 4096
  end

  local function give_back_tokens(raw, now, q)
    local hi, lo = unpack_struct('<I7I2', raw, 2)
    local ihi, ilo = interval(q)
    local bhi, blo = times(ihi, ilo, q.cost)
    hi, lo = hi - bhi, lo - blo
    if lo < 0 then hi, lo = hi - 1, lo + 4096 end
    if hi < now then return false end
    return pack('<BI7I2', TOKENS, hi, lo)
  end

  local function window_start(now, q)
    return q.slot == 0 and month_of(now) or now - now % q.span
  end

  local function give_back_window(raw, now, q, exactly)
    local start, used = unpack_struct('<I7I7', raw, 2)
    local aligned = window_start(now, q)
    if aligned > start or (exactly and aligned ~= start) then return raw end
    return pack('<BI7I7', WINDOW, start, math.max(0, used - q.cost))
  end

  -- What is used, at most the capacity.
  local function used(kind, raw, now, q)
    if kind == HITS then
      local _, total = hits(raw, now, 1, false, q.limit, q.capacity, q.span, q.slot)
      return math.min(total, q.capacity)
    end
    if kind == WINDOW then
      local start, count = unpack_struct('<I7I7', raw, 2)
      if window_start(now, q) > start then return 0 end
      return math.min(count, q.capacity)
    end
    -- The smallest n with n intervals at or past the time ahead.
    local hi, lo = unpack_struct('<I7I2', raw, 2)
    if hi < now then return 0 end
    local ihi, ilo = interval(q)
    local low, high = 0, q.capacity
    while low < high do
      local middle = (low + high - (low + high) % 2) / 2
      local mhi, mlo = times(ihi, ilo, middle)
      if mhi > hi - now or (mhi == hi - now and mlo >= lo) then
        high = middle
      else
        low = middle + 1
      end
    end
    return low
  end

  -- A changed algorithm keeps what was used, as if it were used now.
  local function adopt(kind, raw, now, q)
    local held = used(kind, raw, now, q)
    if held < 1 then return false end
    local _, _, _, bytes =
      lane_of(q.kind)(false, now, held, true, q.limit, q.capacity, q.span, q.slot)
    return bytes
  end

  -- The bytes left, false if nothing is used. `exactly` undoes a charge judged at `now`.
  local function refund(kind, raw, now, q, exactly)
    if raw and kind ~= q.kind then
      if exactly then return raw end
      raw = adopt(kind, raw, now, q)
    end
    if not raw then return false end
    if q.kind == HITS then
      local back = exactly and undo_hits or give_back_hits
      return back(raw, now, q)
    end
    if q.kind == TOKENS then return give_back_tokens(raw, now, q) end
    return give_back_window(raw, now, q, exactly)
  end

  -- How long bytes of a kind still matter.
  local function ends_in(kind, raw, now, q)
    local a, b = unpack_struct(kind == TOKENS and '<I7I2' or '<I7I7', raw, 2)
    if kind == TOKENS then return (b > 0 and a + 1 or a) - now end
    if kind == HITS then return b + q.span - now end
    local _, ends = month_of(a)
    return (q.slot == 0 and ends or a + q.span) - now
  end

  made = { recode = recode, adopt = adopt, refund = refund, ends_in = ends_in }
  return made
end

-- ---------------------------------------------------------------- the call

local CHARGE, PEEK, UNDO = 0, 1, 3

local found = redis.call('MGET', unpack(KEYS))
local bytes, ttls, dirty, owner = {}, {}, {}, {}
for place = 1, #KEYS do
  bytes[place] = found[place]
end

-- `ttl_us`: how long the bytes matter; false leaves the time they have.
local function put(place, raw, ttl_us, decision)
  if ttls[place] == nil then
    dirty[#dirty + 1] = place
    owner[place] = decision
  end
  bytes[place] = raw
  ttls[place] = ttl_us or ttls[place] or false
end

-- Judges a bucket in a way that is not usual: it holds another algorithm's state, or
-- something is given back. Answers as a lane does, after the bytes and their kind.
local function unusual(raw, kind, now, q, operation, counts)
  if operation > PEEK then
    raw = rare().refund(kind, raw, now, q, operation == UNDO)
    kind = raw and kind_of(raw) or EMPTY
    local lane = lane_of(raw and kind or q.kind)
    local wait, a, b = lane(raw, now, q.cost, false, q.limit, q.capacity, q.span, q.slot)
    return raw, kind, wait, a, b
  end
  local wait, a, b = lane_of(kind)(raw, now, q.cost, false, q.limit, q.capacity, q.span, q.slot)
  local new, life
  if wait == FITS or (wait and counts) then
    local adopted, _ = rare().adopt(kind, raw, now, q)
    _, _, _, new, life =
      lane_of(q.kind)(adopted, now, q.cost, true, q.limit, q.capacity, q.span, q.slot)
  end
  return raw, kind, wait, a, b, new, life
end

local clock
local replies, late, ttl_min = {}, {}, 1
local places, news, lives, parts = {}, {}, {}, {}

for index = 1, #ARGV do
  local arg = ARGV[index]
  local operation, buckets, now, at = unpack_struct('<BBd', arg)
  if now >= 0 then
    ttl_min = 3600000 -- an injected clock: tests only
  else
    if not clock then
      local time = redis.call('TIME')
      clock = time[1] * 1000000 + time[2]
    end
    now = clock
  end

  local admitted, rebuilt = 1, 0
  for i = 1, buckets do
    local place, flags, cost, limit, capacity, span
    place, flags, cost, limit, capacity, span, at = unpack_struct('<I2BI4I4I4d', arg, at)
    local algorithm, counts = flags % 4, flags >= 8
    local wanted, lane, slot = HITS, hits, 1
    if algorithm == 1 then
      slot = (span + 63 - (span + 63) % 64) / 64
    elseif algorithm == 2 then
      wanted, lane = TOKENS, tokens
    elseif algorithm == 3 then
      wanted, lane = WINDOW, window
      if span == 0 then span, slot = 31 * DAY, 0 end
    end

    local raw = bytes[place]
    local kind = raw and kind_of(raw) or EMPTY
    local wait, a, b, new, life
    if operation <= PEEK and (kind == EMPTY or kind == wanted) then
      wait, a, b, new, life = lane(raw, now, cost, counts, limit, capacity, span, slot)
    elseif kind == EMPTY or lane_of(kind)(raw, now, 1, false, 1, 1, span, slot) then
      local q = { kind = wanted, cost = cost, limit = limit, capacity = capacity, span = span, slot = slot }
      raw, kind, wait, a, b, new, life = unusual(raw, kind, now, q, operation, counts)
      if operation > PEEK then
        local ends = raw and operation ~= UNDO and rare().ends_in(kind, raw, now, q)
        put(place, raw, ends, index)
      end
    end
    if not wait then
      -- It cannot be read: rebuilt from zero.
      rebuilt, kind = rebuilt + 1, EMPTY
      put(place, false, 0, index)
      wait, a, b, new, life = lane(false, now, cost, counts, limit, capacity, span, slot)
    end

    -- Of those that cannot take the cost, only one that denies (flags below 4) stops all.
    if wait ~= FITS and flags < 4 then admitted = 0 end
    places[i], news[i], lives[i] = place, new, life
    parts[i] = pack('<Bddd', kind, a, b, wait)
  end

  if operation > PEEK then
    admitted = 1
  elseif operation == CHARGE and admitted == 1 then
    for i = 1, buckets do
      if lives[i] then put(places[i], news[i], lives[i], index) end
    end
  end
  local body = buckets == 1 and parts[1] or table.concat(parts, '', 1, buckets)
  replies[index] = pack('<dBB', now, admitted, rebuilt) .. body
end

for i = 1, #dirty do
  local place = dirty[i]
  local key, raw, ttl_us = KEYS[place], bytes[place], ttls[place]
  if not raw or (ttl_us and ttl_us <= 0) then
    if found[place] then redis.call('DEL', key) end
  elseif not ttl_us then
    redis.call('SET', key, raw, 'KEEPTTL')
  else
    local ttl = ttl_us + 999
    ttl = (ttl - ttl % 1000) / 1000
    -- As text: Redis is slow to turn a number into an argument.
    ttl = string.format('%d', ttl < ttl_min and ttl_min or ttl)
    if found[place] then
      redis.call('PSETEX', key, ttl, raw)
    elseif not redis.call('SET', key, raw, 'PX', ttl, 'NX') then
      -- MGET showed nothing, yet something is there: not a string (F-CORRUPT).
      late[#late + 1] = owner[place]
      redis.call('PSETEX', key, ttl, raw)
    end
  end
end
for _, index in ipairs(late) do
  local reply = replies[index]
  replies[index] = sub(reply, 1, 9) .. string.char(byte(reply, 10) + 1) .. sub(reply, 11)
end
return replies
