#!lua
-- Evaluates decisions: each is a list of buckets, charged all or nothing (L-ATOMIC).
--
-- A translation of the pure functions of `palisade_core::limit`, compared with them
-- on random sequences. Every number stays below 2^53, which a double holds exactly;
-- `x - x % 1` rounds down without a call.
--
-- KEYS    the buckets, each once
-- ARGV[1] the limits in use: per limit '<BI6I6d' flags, limit, capacity, window in µs
--         (0: month, -1: year); if 16 was added to the flags then '<d' the instant that a
--         charge counts from (below zero: so many µs ago, less 1)
-- ARGV[2] the decisions, one after the other: '<BB' operation, buckets; if 128 was added to
--         the operation '<d' the instant (else it is this server's clock); if 64 was added
--         '<I2ddI4' a mark: its key's place, the revision it must have, when it ends, the
--         length of its bytes, then these; per bucket
--         '<I2I2I6' its key's place, its limit's place, cost; if something is given back,
--         then per bucket '<d' when it was taken (-1: the cost is charged instead)
-- returns one string: '<d' the clock (0: it was not read), then per decision '<BB'
--         admitted (of a decision with a mark: 0 the record has changed, and nothing was
--         done; 1 done; 2 the mark was there, and nothing was done), rebuilt, and per bucket either the head of its bytes as a charge has
--         left them, or '<BBddd' 0, kind, two numbers of the state found (after a refund:
--         left), wait
--
-- All in one argument and one answer: each more is a cost to the server and to who reads it.
--
-- The caller derives readings from it. A head is at hand anyway, so what is usual costs
-- nothing to describe.
--
-- A bucket's bytes begin with a tag and a life:
--   tokens   4, life, µs (7), ticks of 2^-12 µs (2)      the arrival time, 64 bits in all
--   window   5, life, start (7), count (6)
--   hits     64 + 16 * w + c, life, total (6), newest (7), hits then (4; where c is 6,
--            for large figures, 6), and the entries before it, oldest first: an instant
--            modulo 256^w (all lie within a window of the newest) and c bytes of hits
--
-- When a key ends follows from its bytes alone: from its arrival time, newest hit or
-- start, rounded to a grain of the window, and its life, which says the grain and how
-- many of them. That is somewhat later than needed, and Redis is told only when it
-- moves: a write that leaves it costs a third. A key may end later than its bytes
-- say (after a refund), never earlier.
--
-- Redis makes every function anew on each call, so what is rarely needed is made only
-- when it is: see `rare` at the end of the algorithms.

local unpack_struct, pack = struct.unpack, struct.pack
local byte, sub, call = string.byte, string.sub, redis.call

local EMPTY, HITS, TOKENS, WINDOW = 0, 1, 2, 3
local TOKENS_TAG, WINDOW_TAG = 4, 5
local FITS, NEVER = -1, -2
local DAY = 86400000000
local COUNT_MAX = 2 ^ 48 - 1
local HEAD, LARGE_HEAD = '<BBI6I7I4', '<BBI6I7I6'
-- A product of this and a number of ticks below a microsecond's is exact.
local PRODUCT_MAX = 2 ^ 40

-- A lane judges a bucket of its own kind: (bytes or false, now, cost, counts, limit) →
-- wait, two numbers of the state and, if the cost can be taken or `counts` all the
-- same, the new bytes, the instant at which they end, false where it has not moved, and
-- the head of the new bytes: all of them, or of hits what stands before the entries.
-- It answers nothing about bytes of another kind or that cannot be read (F-CORRUPT). A limit
-- that may be overdrawn waits until one fits, and takes the whole cost then (B-OVERDRAFT).

-- ---------------------------------------------------------------- token bucket

-- `n` times so many µs and ticks, on top of others. The ticks are multiplied in two parts where a
-- double would not hold the product.
local function plus_times(hi, lo, step_hi, step_lo, n)
  if n >= PRODUCT_MAX then
    local part = n % 2 ^ 24
    hi = hi + step_lo * ((n - part) / 2 ^ 24) * 4096
    lo = lo + step_lo * part
  else
    lo = lo + step_lo * n
  end
  local low = lo % 4096
  return hi + step_hi * n + (lo - low) / 4096, low
end

-- The arrival time after a cost that may not fit; what would make a debt of more than a window
-- is forgiven.
local function indebted(hi, lo, now, cost, l)
  local to_hi, to_lo = plus_times(hi, lo, l.step_hi, l.step_lo, cost)
  local deep_hi, deep_lo = now + l.burst_hi + l.span, l.burst_lo
  if hi > deep_hi or (hi == deep_hi and lo > deep_lo) then deep_hi, deep_lo = hi, lo end
  if to_hi > deep_hi or (to_hi == deep_hi and to_lo > deep_lo) then return deep_hi, deep_lo end
  return to_hi, to_lo
end

local function tokens(raw, now, cost, counts, l)
  local life, found_hi, found_lo, hi, lo = 0, 0, 0, now, 0
  if raw then
    if #raw ~= 11 then return nil end
    local tag
    tag, life, found_hi, found_lo = unpack_struct('<BBI7I2', raw)
    if tag ~= TOKENS_TAG or found_hi >= 2 ^ 52 or found_lo >= 4096 then return nil end
    if found_hi >= now then hi, lo = found_hi, found_lo end
  end
  local from_hi, from_lo, needed = hi, lo, l.overdraft and 1 or cost
  -- After the cost; saturates at 64 bits of ticks.
  if needed < PRODUCT_MAX then
    local low = lo + l.step_lo * needed
    lo = low % 4096
    hi = hi + l.step_hi * needed + (low - lo) / 4096
  else
    hi, lo = plus_times(hi, lo, l.step_hi, l.step_lo, needed)
  end
  if hi >= 2 ^ 52 then hi, lo = 2 ^ 52 - 1, 4095 end
  -- Allowed once the burst reaches back to it.
  local at, ticks = hi - l.burst_hi, lo - l.burst_lo
  if ticks < 0 then at, ticks = at - 1, ticks + 4096 end
  if ticks > 0 then at = at + 1 end
  local wait = FITS
  if needed > l.capacity then
    wait = NEVER
  elseif at > now then
    wait = at
  end
  if wait ~= FITS and not counts then return wait, found_hi, found_lo end
  if wait ~= FITS or l.overdraft then hi, lo = indebted(from_hi, from_lo, now, cost, l) end
  local grain = l.grain
  local ends = hi - hi % grain + grain
  local moved = (life ~= l.life or found_hi - found_hi % grain + grain ~= ends) and ends
  local bytes = pack('<BBI7I2', TOKENS_TAG, l.life, hi, lo)
  return wait, found_hi, found_lo, bytes, moved, bytes
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

-- The first day of a year, counted from 1970.
local function year_day(year)
  local before = year - 1
  local leaps = (before - before % 4) / 4 - (before - before % 100) / 100
    + (before - before % 400) / 400
  return 365 * before + leaps - 719162
end

-- The first instant of the UTC year that `at` is in, and of the next one.
local year_from, year_to = 0, 0
local function year_of(at)
  if at < year_from or at >= year_to then
    local days = (at - at % DAY) / DAY
    local year = 1970 + (days - days % 366) / 366
    while year_day(year + 1) <= days do year = year + 1 end
    year_from, year_to = year_day(year) * DAY, year_day(year + 1) * DAY
  end
  return year_from, year_to
end

local function window(raw, now, cost, counts, l)
  local life, found_start, found_used = 0, 0, 0
  if raw then
    if #raw ~= 15 then return nil end
    local tag
    tag, life, found_start, found_used = unpack_struct('<BBI7I6', raw)
    if tag ~= WINDOW_TAG or found_start >= 2 ^ 53 then return nil end
  end
  local start, used = found_start, found_used
  local aligned = l.calendar and l.calendar(now) or now - now % l.span
  -- A clock that went back stays in the window it was in.
  if aligned > start then start, used = aligned, 0 end
  local wait, needed = FITS, l.overdraft and 1 or cost
  if needed > l.capacity then
    wait = NEVER
  elseif used + needed > l.limit then
    wait = start + l.span
    if l.calendar then
      local _
      _, wait = l.calendar(start)
    end
  end
  if wait ~= FITS and not counts then return wait, found_start, found_used end
  used = used + cost
  if used > COUNT_MAX then used = COUNT_MAX end
  local moved = (life ~= l.life or start ~= found_start) and start - start % l.grain + l.reach
  local bytes = pack('<BBI7I6', WINDOW_TAG, l.life, start, used)
  return wait, found_start, found_used, bytes, moved, bytes
end

-- ---------------------------------------------------------------- sliding log and wheel

local rare

local function format(wide, count)
  if count == 6 then return wide >= 4 and wide <= 7 and '<I' .. wide .. 'I6' end
  if count ~= 1 and count ~= 4 then return nil end
  if wide == 4 then return count == 1 and '<I4I1' or '<I4I4' end
  if wide == 5 then return count == 1 and '<I5I1' or '<I5I4' end
  if wide == 6 then return count == 1 and '<I6I1' or '<I6I4' end
  if wide == 7 then return count == 1 and '<I7I1' or '<I7I4' end
end

-- The layout of a head, the entries before and one more.
local function appending(layout)
  if layout == '<I4I1' then return '<c0c0I4I1' end
  return '<c0c0' .. sub(layout, 2)
end

-- The log is a wheel with slots of 1 µs: a hit is kept at the last instant of its slot.
local function hits(raw, now, cost, counts, l)
  local span = l.span
  local life, total, newest, top, wide, count, layout, modulo = 0, 0, 0, 0
  local first, last, most = 20, 19, 2 ^ 32
  if raw then
    last = #raw
    if last < 19 then return nil end
    local tag
    tag, life, total, newest, top = unpack_struct(HEAD, raw)
    if tag == 129 then
      wide, count, layout, modulo = 4, 1, '<I4I1', 2 ^ 32
    else
      count = tag % 16
      wide = (tag - 64 - count) / 16
      layout, modulo = format(wide, count), 256 ^ wide
      if count == 6 then
        if last < 21 then return nil end
        top, first, most = unpack_struct('<I6', raw, 16), 22, 2 ^ 48
      end
    end
    local entries = (last - first + 1) / (wide + count)
    if not layout or entries % 1 > 0 or newest >= 2 ^ 53 or top == 0
      or total < top + entries or total > top + entries * most then
      return nil
    end
    -- What is a window old is out.
    if newest + span <= now then
      total, newest = 0, 0
    else
      while first <= last do
        local low, n = unpack_struct(layout, raw, first)
        if newest - (newest - low) % modulo + span > now then break end
        total = total - n
        first = first + wide + count
      end
    end
  end
  -- Fits now, or when enough of the oldest have left.
  local wait, room = FITS, l.capacity - (l.overdraft and 1 or cost)
  if room < 0 then
    wait = NEVER
  elseif total > room then
    local held, scan = total, first
    wait = newest + span
    while scan <= last do
      local low, n = unpack_struct(layout, raw, scan)
      held = held - n
      if held <= room then
        wait = newest - (newest - low) % modulo + span
        break
      end
      scan = scan + wide + count
    end
  end
  if wait ~= FITS and not counts then return wait, total, newest end
  if total + cost > COUNT_MAX then cost = COUNT_MAX - total end
  if cost == 0 then return wait, total, newest, total > 0 and raw, false end

  local after, head, bytes = now - now % l.slot + l.slot - 1
  if l.from then
    after = rare().counts_from(now, l)
    -- It has left its window already.
    if after + span <= now then return wait, total, newest, total > 0 and raw, false end
    if after < newest then
      bytes = rare().insert(raw, now, after, cost, l)
      local moved = life ~= l.life and newest - newest % l.grain + l.reach
      return wait, total, newest, bytes, moved, sub(bytes, 1, byte(bytes) % 16 == 6 and 21 or 19)
    end
  end
  if total == 0 then
    if cost < 2 ^ 32 then
      head = pack(HEAD, 65 + l.wide * 16, l.life, cost, after, cost)
    else
      head = pack(LARGE_HEAD, 70 + l.wide * 16, l.life, cost, after, cost)
    end
    bytes = head
  elseif after <= newest and top + cost < most then
    -- Hits of one instant are kept together.
    after = newest
    head = count == 6 and LARGE_HEAD or HEAD
    head = pack(head, 64 + wide * 16 + count, l.life, total + cost, newest, top + cost)
    bytes = first > last and head or head .. sub(raw, first)
  elseif after <= newest or cost >= most or wide < l.wide or (count == 1 and top > 255) then
    local room = (after <= newest or cost >= most) and 6 or count == 1 and top > 255 and 4 or count
    return hits(rare().recode(raw, math.max(wide, l.wide), room), now, cost, counts, l)
  else
    head = count == 6 and LARGE_HEAD or HEAD
    head = pack(head, 64 + wide * 16 + count, l.life, total + cost, after, cost)
    local rest = first > last and '' or sub(raw, first)
    bytes = pack(appending(layout), head, rest, newest % modulo, top)
  end
  local grain = l.grain
  local moved = after - after % grain
  moved = (life ~= l.life or moved ~= newest - newest % grain) and moved + l.reach
  return wait, total, newest, bytes, moved, head
end

-- ---------------------------------------------------------------- any bucket

-- The kind that bytes claim to be.
local function kind_of(raw)
  local tag = byte(raw, 1)
  if tag == TOKENS_TAG then return TOKENS end
  if tag == WINDOW_TAG then return WINDOW end
  return HITS
end

local function lane_of(kind)
  if kind == TOKENS then return tokens end
  if kind == WINDOW then return window end
  return hits
end

-- Ticks per token, span * 4096 / limit rounded up, and per burst.
local function with_ticks(l)
  local span, limit = l.span, l.limit
  local rest = span % limit
  local hi, lo = (span - rest) / limit, 0
  -- Six bits at a time: a double holds 64 times any figure.
  for _ = 1, 2 do
    local left = rest * 64 % limit
    lo = lo * 64 + (rest * 64 - left) / limit
    rest = left
  end
  if rest > 0 then lo = lo + 1 end
  l.step_hi, l.step_lo = hi, lo
  l.burst_hi, l.burst_lo = plus_times(0, 0, hi, lo, l.capacity)
end

local made
rare = function()
  if made then return made end

  -- Entries as a list of instant, hits; then what else the bytes say.
  local function read(raw)
    local tag, life, _, newest, top = unpack_struct(HEAD, raw)
    local count, first = tag % 16, 20
    local wide = (tag - 64 - count) / 16
    if count == 6 then
      top, first = unpack_struct('<I6', raw, 16), 22
    end
    local list = {}
    for at = first, #raw, wide + count do
      local low, n = unpack_struct(format(wide, count), raw, at)
      list[#list + 1] = { newest - (newest - low) % 256 ^ wide, n }
    end
    list[#list + 1] = { newest, top }
    return list, life, wide, count
  end

  -- The same as bytes; false if there are none.
  local function write(list, life, wide, count)
    local newest, parts, total = table.remove(list), {}, 0
    if not newest then return false end
    for i, e in ipairs(list) do
      parts[i] = pack(format(wide, count), e[1] % 256 ^ wide, e[2])
      total = total + e[2]
    end
    local tag = 64 + wide * 16 + count
    return pack(count == 6 and LARGE_HEAD or HEAD, tag, life, total + newest[2], newest[1], newest[2])
      .. table.concat(parts)
  end

  local function recode(raw, wide, count)
    local list, life = read(raw)
    return write(list, life, wide, count)
  end

  -- The instant at which a charge is kept that does not count from now: what was used earlier
  -- shares the slots of other hits, a hold ends exactly.
  local function counts_from(now, l)
    if l.from < 0 then return math.max(0, now + l.from + 1) end
    local at = math.min(now, l.from)
    return at - at % l.slot + l.slot - 1
  end

  -- Hits put in their place among the others, of which those that are out are left out.
  local function insert(raw, now, at, cost, l)
    local list, _, wide, count = read(raw)
    local kept, place = {}, 1
    for _, e in ipairs(list) do
      if e[1] + l.span > now then kept[#kept + 1] = e end
    end
    while kept[place] and kept[place][1] < at do place = place + 1 end
    local same = kept[place]
    if same and same[1] == at then
      same[2] = same[2] + cost
    else
      table.insert(kept, place, { at, cost })
    end
    for _, e in ipairs(kept) do
      if e[2] > 255 then count = math.max(count, 4) end
      if e[2] >= 2 ^ 32 then count = 6 end
    end
    return write(kept, l.life, math.max(wide, l.wide), count)
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
  local function give_back_hits(raw, now, cost, l)
    local list, life, wide, count = read(raw)
    local live = function(at) return at + l.span > now end
    for _, e in ipairs(list) do
      if not live(e[1]) then e[2] = 0 end
    end
    drain(list, cost, 1, 1, live)
    return write(without_empty(list), life, wide, count)
  end

  -- Hits put in at `taken` come out while the window counts them: they are at the
  -- oldest entry from then to the end of the slot.
  local function return_hits(raw, now, cost, l, taken)
    if taken + l.span <= now then return raw end
    local list, life, wide, count = read(raw)
    local slot_end, own = taken - taken % l.slot + l.slot - 1, false
    for _, e in ipairs(list) do
      if not own and e[1] >= taken then own = e[1] end
    end
    if not own or own > slot_end then return raw end
    drain(list, cost, 1, 1, function(at) return at == own end)
    return write(without_empty(list), life, wide, count)
  end

  local function times(hi, lo, n)
    hi, lo = plus_times(0, 0, hi, lo, n)
    if hi >= 2 ^ 52 then return 2 ^ 52 - 1, 4095 end
    return hi, lo
  end

  -- What can have drained since `taken` stays.
  local function give_back_tokens(raw, now, cost, l, taken)
    local life, hi, lo = unpack_struct('<BI7I2', raw, 2)
    local back_hi, back_lo = times(l.step_hi, l.step_lo, cost)
    back_hi = back_hi - math.max(0, now - taken)
    if back_hi < 0 then return raw end
    hi, lo = hi - back_hi, lo - back_lo
    if lo < 0 then hi, lo = hi - 1, lo + 4096 end
    if hi < now then return false end
    return pack('<BBI7I2', TOKENS_TAG, life, hi, lo)
  end

  local function window_start(now, l)
    return l.calendar and l.calendar(now) or now - now % l.span
  end

  local function give_back_window(raw, now, cost, l, taken)
    local life, start, used = unpack_struct('<BI7I6', raw, 2)
    if window_start(now, l) > start then return raw end
    if taken and window_start(taken, l) ~= start then return raw end
    return pack('<BBI7I6', WINDOW_TAG, life, start, math.max(0, used - cost))
  end

  -- What is used, at most the capacity.
  local function used(kind, raw, now, l)
    if kind == HITS then
      local _, total = hits(raw, now, 1, false, l)
      return math.min(total, l.capacity)
    end
    if kind == WINDOW then
      local _, start, count = unpack_struct('<BI7I6', raw, 2)
      if window_start(now, l) > start then return 0 end
      return math.min(count, l.capacity)
    end
    -- The smallest n with n intervals at or past the time ahead.
    local _, hi, lo = unpack_struct('<BI7I2', raw, 2)
    if hi < now then return 0 end
    local low, high = 0, l.capacity
    while low < high do
      local middle = (low + high - (low + high) % 2) / 2
      local mhi, mlo = times(l.step_hi, l.step_lo, middle)
      if mhi > hi - now or (mhi == hi - now and mlo >= lo) then
        high = middle
      else
        low = middle + 1
      end
    end
    return low
  end

  -- A changed algorithm keeps what was used, as if it were used now.
  local function adopt(kind, raw, now, l)
    local held = used(kind, raw, now, l)
    if held < 1 then return false end
    local from = l.from
    l.from = false
    local _, _, _, bytes, ends = l.lane(false, now, held, true, l)
    l.from = from
    return bytes, ends
  end

  -- The bytes left, false if nothing is used, and the instant at which they end where
  -- it has moved on. With `taken` only what was taken then and still counts is given
  -- back (L-GIVE-BACK).
  local function refund(kind, raw, now, cost, l, taken)
    local ends = false
    if raw and kind ~= l.kind then
      if taken then return raw, false end
      raw, ends = adopt(kind, raw, now, l)
    end
    if not raw then return false, false end
    if l.kind == HITS then
      local back = taken and return_hits or give_back_hits
      return back(raw, now, cost, l, taken), ends
    end
    if l.kind == TOKENS then return give_back_tokens(raw, now, cost, l, taken or now), ends end
    return give_back_window(raw, now, cost, l, taken), ends
  end

  -- Charges a cost that may not fit; the bytes, the instant at which they end where it
  -- has moved on, and the wait.
  local function surcharge(kind, raw, now, cost, l)
    local lane = raw and lane_of(kind) or l.lane
    local wait = lane(raw, now, cost, false, l)
    if wait ~= FITS and not l.counts then return raw, false, wait end
    local held, ends = raw, false
    if raw and kind ~= l.kind then held, ends = adopt(kind, raw, now, l) end
    local _, _, _, new, ending = l.lane(held, now, cost, true, l)
    return new, ending or ends, wait
  end

  made = {
    recode = recode, adopt = adopt, refund = refund, surcharge = surcharge,
    counts_from = counts_from, insert = insert,
  }
  return made
end

-- ---------------------------------------------------------------- the call

-- A charge that is part of a larger decision shows what it found.
local CHARGE, PEEK, GIVE_BACK, PART = 0, 1, 3, 4
-- Bytes of a bucket in a decision.
local ASKED = 10

local limits = {}
do
  local at, text = 1, ARGV[1]
  while at <= #text do
    local flags, limit, capacity, span
    flags, limit, capacity, span, at = unpack_struct('<BI6I6d', text, at)
    local from = false
    if flags >= 16 then
      from, at = unpack_struct('<d', text, at)
      flags = flags - 16
    end
    local algorithm, kind, lane, slot, calendar = flags % 4, HITS, hits, 1, false
    if span == 0 then
      span, calendar = 31 * DAY, month_of
    elseif span < 0 then
      span, calendar = 366 * DAY, year_of
    end
    if algorithm == 1 then
      slot = (span + 63 - (span + 63) % 64) / 64
    elseif algorithm == 2 then
      kind, lane = TOKENS, tokens
    elseif algorithm == 3 then
      kind, lane = WINDOW, window
    end
    -- A grain is between a quarter and an eighth of the span, but a millisecond.
    local eighths, power = math.frexp(span)
    power = power > 13 and power - 3 or 10
    eighths = math.max(5, math.ceil(span / 2 ^ power))
    local life, grain, reach = power * 4 + eighths - 5, 2 ^ power, (eighths + 1) * 2 ^ power
    local far = span + slot
    local l = {
      kind = kind, lane = lane, limit = limit, capacity = capacity, span = span, slot = slot,
      wide = far < 2 ^ 32 and 4 or far < 2 ^ 40 and 5 or far < 2 ^ 48 and 6 or 7,
      calendar = calendar, denies = flags < 4 or flags >= 12, counts = flags >= 8 and flags < 12,
      overdraft = flags >= 12, from = from,
      life = life, grain = grain, reach = reach,
      step_hi = false, step_lo = false, burst_hi = false, burst_lo = false,
    }
    if kind == TOKENS then with_ticks(l) end
    limits[#limits + 1] = l
  end
end

local bytes = call('MGET', unpack(KEYS))
-- A copy is made at its full length; a table that grows is made anew at each power of two.
local before, ends = { unpack(bytes) }, {}

-- `ending`: the instant at which the bytes end; false leaves the end they have.
local function put(place, raw, ending)
  bytes[place] = raw
  if ending then ends[place] = ending end
end

-- Judges a bucket in a way that is not usual: it holds another algorithm's state, or
-- something is given back. Answers as a lane does, after the bytes and their kind.
local function unusual(raw, kind, now, cost, l, operation, taken)
  if operation > PEEK then
    local change, ending, waited = rare().refund, nil, nil
    if taken and taken < 0 then change = rare().surcharge end
    raw, ending, waited = change(kind, raw, now, cost, l, taken)
    kind = raw and kind_of(raw) or EMPTY
    local lane = raw and lane_of(kind) or l.lane
    local wait, a, b = lane(raw, now, cost, false, l)
    return raw, kind, waited or wait, a, b, nil, ending
  end
  local wait, a, b = lane_of(kind)(raw, now, cost, false, l)
  local new, ending
  if wait == FITS or (wait and l.counts) then
    local adopted, first = rare().adopt(kind, raw, now, l)
    local _
    _, _, _, new, ending = l.lane(adopted, now, cost, true, l)
    ending = ending or first
  end
  return raw, kind, wait, a, b, new, ending
end

local function full(kind, a, b, wait)
  return pack('<BBddd', 0, kind, a, b, wait)
end

-- A bucket of a decision that is denied: as it was found.
local function untouched(place, number, cost, now)
  local l, raw = limits[number], bytes[place]
  local wait, a, b = l.lane(raw, now, cost, false, l)
  return full(raw and l.kind or EMPTY, a, b, wait)
end

local asked = ARGV[2]
local clock = false
-- What is answered, in order: the clock and, of each decision, its header and its buckets. The
-- table has room at once for as many entries as most calls need; what fills it means nothing.
local said, length, late, injected = { byte(asked, 1, 64) }, 1, {}, false
local places, news, endings = {}, {}, {}

-- A decision's operation, its number of buckets, its instant (false: the server's clock), and
-- where its buckets and its mark (false: it has none) begin.
local function header(at)
  local operation, buckets = byte(asked, at, at + 1)
  local now, mark = false, false
  at = at + 2
  if operation >= 128 then
    operation, now = operation - 128, unpack_struct('<d', asked, at)
    at = at + 8
  end
  if operation >= 64 then
    local length = unpack_struct('<I4', asked, at + 18)
    operation, mark, at = operation - 64, at, at + 22 + length
  end
  return operation, buckets, now, at, mark
end

local at = 1
while at <= #asked do
  local operation, buckets, now, first, mark = header(at)
  local shows_left, has_instants = operation == CHARGE, operation == GIVE_BACK
  if operation == PART then operation = CHARGE end
  if now then
    injected = true -- tests only
  else
    if not clock then
      local time = call('TIME')
      clock = time[1] * 1000000 + time[2]
    end
    now = clock
  end

  if mark then
    -- Laid out like a record of `commit.lua`.
    local place, expected, ending, size = unpack_struct('<I2ddI4', asked, mark)
    local text, raw, revision = sub(asked, mark + 22, mark + 21 + size), bytes[place], 0
    if raw and #raw >= 14 then
      local found, stands = unpack_struct('<I7I7', raw)
      if stands > now then revision = found end
    end
    if revision == expected and ending > now and (not raw or #raw >= 14) then
      put(place, pack('<I7I7', expected + 1, ending) .. text, ending)
      mark = 1
    else
      mark = revision == expected + 1 and sub(raw, 15) == text and 2 or 0
      operation = PEEK
    end
  end

  local admitted, rebuilt, head_at = 1, 0, length + 1
  said[head_at] = '\1\0'
  length = head_at + buckets
  at = first
  for i = 1, buckets do
    -- Faster than `unpack_struct`, here more than anywhere.
    local p, p2, n, n2, c, c2, c3, c4, c5, c6 = byte(asked, at, at + 9)
    local place, number = p + p2 * 256, n + n2 * 256
    local cost = c + c2 * 256 + c3 * 65536 + c4 * 16777216 + c5 * 2 ^ 32 + c6 * 2 ^ 40
    at = at + ASKED
    local l, raw = limits[number], bytes[place]
    local kind, wait, a, b, new, ending, head
    if operation <= PEEK then
      wait, a, b, new, ending, head = l.lane(raw, now, cost, l.counts, l)
      kind = raw and l.kind or EMPTY
    end
    if not wait then
      if not l.step_hi then with_ticks(l) end
      kind = raw and kind_of(raw) or EMPTY
      if kind == EMPTY or lane_of(kind)(raw, now, 1, false, l) then
        local taken = has_instants
          and unpack_struct('<d', asked, first + ASKED * buckets + 8 * (i - 1))
        raw, kind, wait, a, b, new, ending = unusual(raw, kind, now, cost, l, operation, taken)
        if operation > PEEK then put(place, raw, ending) end
      else
        -- It cannot be read: rebuilt from zero.
        rebuilt, kind = rebuilt + 1, EMPTY
        put(place, false, false)
        wait, a, b, new, ending, head = l.lane(false, now, cost, l.counts, l)
      end
    end

    -- Of those that cannot take the cost, only one that denies stops all.
    if wait ~= FITS and l.denies then admitted = 0 end
    places[i], news[i], endings[i] = place, new, ending
    said[head_at + i] = shows_left and wait == FITS and head or full(kind, a, b, wait)
  end
  if has_instants then at = at + 8 * buckets end

  if operation > PEEK then
    admitted = 1
  elseif operation == CHARGE and admitted == 1 then
    for i = 1, buckets do
      local new = news[i]
      if new ~= nil then put(places[i], new, endings[i]) end
    end
  elseif shows_left then
    for i = 1, buckets do
      if byte(said[head_at + i]) > 0 then
        local place, number, cost = unpack_struct('<I2I2I6', asked, first + ASKED * (i - 1))
        said[head_at + i] = untouched(place, number, cost, now)
      end
    end
  end
  admitted = mark or admitted
  if admitted ~= 1 or rebuilt > 0 then said[head_at] = string.char(admitted, rebuilt) end
end

for place = 1, #KEYS do
  local raw, was = bytes[place], before[place]
  if raw ~= was then
    local key, ending = KEYS[place], ends[place]
    if not raw then
      if was then call('DEL', key) end
    elseif was and not ending then
      if #raw == #was then
        call('SETRANGE', key, '0', raw) -- in place: half the cost of a SET
      else
        call('SET', key, raw, 'KEEPTTL')
      end
    else
      -- As text: Redis is slow to turn a number into an argument.
      local unit, when = 'PXAT', string.format('%d', ((ending or 0) + 999) / 1000)
      if injected then unit, when = 'PX', '3600000' end
      if was then
        call('SET', key, raw, unit, when)
      elseif not call('SET', key, raw, unit, when, 'NX') then
        -- MGET showed nothing, yet something is there: not a string (F-CORRUPT).
        late[#late + 1] = place
        call('SET', key, raw, unit, when)
      end
    end
  end
end

-- Whoever came first has rebuilt it.
local function rebuilt_by_first(place)
  local at, head_at = 1, 2
  while at <= #asked do
    local operation, buckets, _, first = header(at)
    for i = 0, buckets - 1 do
      if unpack_struct('<I2', asked, first + ASKED * i) == place then
        local admitted, rebuilt = byte(said[head_at], 1, 2)
        said[head_at] = string.char(admitted, rebuilt + 1)
        return
      end
    end
    at = first + (operation == GIVE_BACK and ASKED + 8 or ASKED) * buckets
    head_at = head_at + 1 + buckets
  end
end
for _, place in ipairs(late) do rebuilt_by_first(place) end

said[1] = pack('<d', clock or 0)
return table.concat(said, '', 1, length)
