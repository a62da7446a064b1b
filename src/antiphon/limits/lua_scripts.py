"""Lua scripts for Redis, the encoding of their arguments, and the reading of their results. It does no I/O.

The scripts have the counters of `limits.windows`, stored in Redis and timed by its clock. Each script is one
atomic step. If its answer was lost, it can be sent again: it does nothing twice. All keys have one prefix and
expire:

    w:ID  hash   sliding window: amounts by bucket, `t` their sum, `s` set once the ledger was read
    q:ID  list   the bucket numbers of w:ID, the oldest first
    p:ID  hash   calendar periods: amounts by beginning, and `s`
    r:ID  set    running claims by the end of their lease (milliseconds)
    k:ID  text   a claim (MessagePack): its step number, and its amounts by limit and window slot

A counter's kind is `minute`, `day`, `week`, `month` or `running`. The amounts of one request are below 2^53,
which Lua holds exactly. Totals and limits can reach 2^63, which Redis holds: Lua keeps these as text and
compares them in two halves.
"""

from collections.abc import Sequence

from antiphon.domain.limits import Amounts, Limit, LimitStatus, Measure, Window
from antiphon.domain.values import Struct
from antiphon.errors import LimitsUnavailable
from antiphon.limits.refusals import build_refusal, pick_longest
from antiphon.limits.windows import BUCKET, BUCKETS, find_period, find_period_bounds

MICROSECOND = 1_000
"""Nanoseconds."""
DAY_S = 24 * 3600
"""Seconds of a day. An unused key expires after a day, and a key of calendar periods after 40 days. Then its
usage can be read from the ledger again."""
LATE_S = 60
"""Seconds in which a late call of an ended claim can still arrive."""
INTEGERS_END = 2**63
"""All integers of Redis are below this number."""
TIME = "redis.call('TIME')"
"""Lua expression for the current time: seconds and microseconds."""

SHARED = """
local BUCKET, BUCKETS, AGAIN = %BUCKET%, %BUCKETS%, 1000000
local LIFETIME = {minute = %DAY%, period = 40 * %DAY%}
local CLAIM, RUNNING = %DAY%, %DAY%
local OVER, LATE = 2 ^ 53, %LATE%
local prefix = KEYS[1]
local time = %TIME%
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local function text(number)
  return type(number) == 'string' and number or string.format('%.0f', number)
end
local function minus(text) return string.sub(text, 1, 1) == '-' and string.sub(text, 2) or '-' .. text end
local function key(kind, id) return prefix .. ':' .. kind .. ':' .. id end
local function hashed(kind, id) return key(kind == 'minute' and 'w' or 'p', id) end

-- Beginning and end of the current period, in seconds. A limit comes with two periods: one of them is
-- current.
local function period(limit)
  local first, second, last = unpack(limit.bounds)
  if now < second * 1000000 then return first, second end
  return second, last
end

-- Splits a number into billions and the remainder.
local function halves(text)
  local sign = string.sub(text, 1, 1) == '-' and -1 or 1
  local digits = string.match(text, '%d+')
  return sign * (tonumber(string.sub(digits, 1, -10)) or 0), sign * tonumber(string.sub(digits, -9))
end

-- How far the used and the requested amount together exceed a limit. Exact unless the difference is very
-- large.
local function excess_of(counted, asked, limit)
  local counted_high, counted_low = halves(counted)
  local limit_high, limit_low = halves(limit)
  return (counted_high - limit_high) * 1000000000 + (counted_low - limit_low + asked)
end

-- The used amount, as text.
local function used(limit)
  local kind, id = limit.kind, limit.id
  if kind == 'running' then
    redis.call('ZREMRANGEBYSCORE', key('r', id), '-inf', text(math.floor(now / 1000)))
    return text(redis.call('ZCARD', key('r', id)))
  end
  if kind ~= 'minute' then
    return redis.call('HGET', key('p', id), text((period(limit)))) or '0'
  end
  local hash, queue = key('w', id), key('q', id)
  local oldest = math.floor(now / BUCKET) - BUCKETS
  local bucket = redis.call('LINDEX', queue, 0)
  while bucket and tonumber(bucket) < oldest do
    local amount = redis.call('HGET', hash, bucket)
    if amount then
      redis.call('HINCRBY', hash, 't', minus(amount))
      redis.call('HDEL', hash, bucket)
    end
    redis.call('LPOP', queue)
    bucket = redis.call('LINDEX', queue, 0)
  end
  return redis.call('HGET', hash, 't') or '0'
end

-- Whether the amounts in a window slot still count.
local function is_current(limit, slot)
  if limit.kind == 'minute' then return slot >= math.floor(now / BUCKET) - BUCKETS end
  return slot == period(limit)
end

-- Adds an amount to a field. A sum that no integer of Redis holds becomes the largest one.
local function add(hash, field, amount)
  local reply = redis.pcall('HINCRBY', hash, field, amount)
  if type(reply) == 'table' then redis.call('HSET', hash, field, '%LARGEST%') end
end

-- Counts an amount, and returns its window slot.
local function take(limit, amount)
  local id = limit.id
  if limit.kind == 'minute' then
    local hash, queue = key('w', id), key('q', id)
    local bucket = math.floor(now / BUCKET)
    local newest = tonumber(redis.call('LINDEX', queue, -1) or -1)
    if bucket <= newest then
      bucket = newest  -- the clock was set back: keep the order of the buckets
    else
      redis.call('RPUSH', queue, text(bucket))
      redis.call('EXPIRE', queue, LIFETIME.minute)
    end
    add(hash, text(bucket), text(amount))
    add(hash, 't', text(amount))
    redis.call('EXPIRE', hash, LIFETIME.minute)
    return bucket
  end
  local begin = period(limit)
  add(key('p', id), text(begin), text(amount))
  redis.call('EXPIRE', key('p', id), LIFETIME.period)
  return begin
end

-- Subtracts an amount in a window slot, if the slot still exists.
local function subtract(limit, slot, amount)
  local hash = hashed(limit.kind, limit.id)
  if redis.call('HEXISTS', hash, text(slot)) == 0 then return end
  local remaining = redis.call('HINCRBY', hash, text(slot), text(-amount))
  if limit.kind ~= 'minute' then return end
  redis.call('HINCRBY', hash, 't', text(-amount))
  if remaining <= 0 then
    redis.call('HDEL', hash, text(slot))
    redis.call('LREM', key('q', limit.id), -1, text(slot))
  end
end

-- Microseconds until a bucket leaves the window.
local function time_left(bucket) return math.max(0, (bucket + BUCKETS + 1) * BUCKET - now) end

-- Microseconds until the used amount is 0, if nothing more is counted.
local function reset(limit)
  if limit.kind == 'running' then return 0 end
  if limit.kind == 'minute' then
    local newest = redis.call('LINDEX', key('q', limit.id), -1)
    return newest and time_left(tonumber(newest)) or 0
  end
  local _, finish = period(limit)
  return math.max(0, finish * 1000000 - now)
end

-- Microseconds until the used amount has fallen by `excess`.
local function wait(limit, excess)
  if limit.kind == 'running' then return AGAIN end
  if limit.kind ~= 'minute' then return reset(limit) end
  local freed = 0
  for from = 0, BUCKETS, 20 do
    for _, bucket in ipairs(redis.call('LRANGE', key('q', limit.id), from, from + 19)) do
      freed = freed + tonumber(redis.call('HGET', key('w', limit.id), bucket) or 0)
      if freed >= excess then return time_left(tonumber(bucket)) end
    end
  end
  return BUCKETS * BUCKET
end

-- The open claim with this id; nil if there is none.
local function claim_of(id)
  local packed = redis.call('GET', key('k', id))
  return packed and cmsgpack.unpack(packed) or nil
end

local function store_claim(id, claim)
  redis.call('SET', key('k', id), cmsgpack.pack(claim), 'EX', CLAIM)
end

-- Reads limits from ARGV, from index `start` on. Each has eight arguments: id, kind, measure, the limit's
-- amount, the requested amount, the beginning of a period, its end, and the end of the next period.
local function limits_from(start)
  local limits = {}
  for at = start, #ARGV, 8 do
    limits[#limits + 1] = {
      id = ARGV[at], kind = ARGV[at + 1], measure = ARGV[at + 2],
      amount = ARGV[at + 3], asked = tonumber(ARGV[at + 4]),
      bounds = {tonumber(ARGV[at + 5]), tonumber(ARGV[at + 6]), tonumber(ARGV[at + 7])},
    }
  end
  return limits
end

-- Indexes of the limits that have no counter yet. Their counters must first be made from the ledger.
local function list_unknown(limits)
  local numbers = {}
  for number, limit in ipairs(limits) do
    if limit.kind ~= 'running' and redis.call('HEXISTS', hashed(limit.kind, limit.id), 's') == 0 then
      numbers[#numbers + 1] = number
    end
  end
  return numbers
end

local function list_statuses(limits)
  local statuses = {}
  for number, limit in ipairs(limits) do
    statuses[number] = {used(limit), reset(limit)}
  end
  return statuses
end
"""

READ_STATUS = """
local limits = limits_from(1)
local numbers = list_unknown(limits)
if #numbers > 0 then return {'unknown', numbers} end
return {'ok', list_statuses(limits)}
"""
"""Arguments: limits. Returns the status of each limit (used amount, microseconds until reset), or the
indexes of the limits that have no counter."""

TAKE = """
local id, step, lease = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local limits = limits_from(4)
local numbers = list_unknown(limits)
if #numbers > 0 then return {'unknown', numbers} end
local claim = claim_of(id)
if claim and claim.step >= step then return {'ok', list_statuses(limits)} end
local parts = {}
for _, held in ipairs(claim and claim.held or {}) do parts[held.id] = held.parts end
local refusals = {}
for number, limit in ipairs(limits) do
  local excess = excess_of(used(limit), limit.asked, limit.amount)
  if limit.asked > 0 and excess > 0 then
    local reserved = 0
    for _, part in ipairs(step == 1 and parts[limit.id] or {}) do
      if is_current(limit, part[1]) then reserved = reserved + part[2] end
    end
    refusals[#refusals + 1] = {number, wait(limit, excess), reserved}
  end
end
if #refusals > 0 then return {'refused', list_statuses(limits), refusals, math.floor(now / 1000)} end
if not claim then
  claim = {held = {}}
  for number, limit in ipairs(limits) do
    parts[limit.id] = {}
    claim.held[number] = {
      id = limit.id, kind = limit.kind, measure = limit.measure, parts = parts[limit.id],
      bounds = limit.bounds,
    }
  end
end
claim.step = step
for _, limit in ipairs(limits) do
  if limit.kind == 'running' then
    if limit.asked > 0 then
      redis.call('ZADD', key('r', limit.id), text(math.floor(now / 1000) + lease), id)
      redis.call('EXPIRE', key('r', limit.id), RUNNING)
    end
  elseif limit.asked > 0 then
    local taken = parts[limit.id]
    taken[#taken + 1] = {take(limit, limit.asked), limit.asked}
  end
end
store_claim(id, claim)
return {'ok', list_statuses(limits)}
"""
"""Arguments: claim, step number, lease in milliseconds, and limits. For an open claim: its limits that still
exist. Returns what READ_STATUS returns, or refusals and the time in Unix milliseconds. A refusal has the
index of a limit without room, the wait, and the amount that the claim reserved before the request's size was
known."""

SETTLE = """
for at = 1, #ARGV, 5 do
  local id = ARGV[at]
  local claim = claim_of(id)
  local amounts = {
    requests = tonumber(ARGV[at + 1]), input_tokens = tonumber(ARGV[at + 2]),
    output_tokens = tonumber(ARGV[at + 3]), cost = tonumber(ARGV[at + 4]),
  }
  amounts.tokens = amounts.input_tokens + amounts.output_tokens
  for _, held in ipairs(claim and claim.held or {}) do
    if held.kind == 'running' then
      redis.call('ZREM', key('r', held.id), id)
    else
      local excess = -amounts[held.measure]
      for _, part in ipairs(held.parts) do excess = excess + part[2] end
      if excess < 0 then take(held, -excess) end
      for number = #held.parts, 1, -1 do
        local less = math.min(excess, held.parts[number][2])
        if less > 0 then
          subtract(held, held.parts[number][1], less)
          excess = excess - less
        end
      end
    end
  end
  if claim and claim.step < OVER then
    redis.call('DEL', key('k', id))
  else
    redis.call('SET', key('k', id), cmsgpack.pack({step = OVER, held = {}}), 'EX', LATE)
  end
end
return 'settled'
"""
"""Arguments: claims, each with the requests, input tokens, output tokens and cost that it used. An unknown
claim is marked as ended, because its TAKE can still arrive on another connection."""

RELEASE = """
for _, id in ipairs(ARGV) do
  local claim = claim_of(id)
  for _, held in ipairs(claim and claim.held or {}) do
    if held.kind == 'running' then redis.call('ZREM', key('r', held.id), id) end
  end
end
return 'released'
"""
"""Arguments: open claims, which no longer count as running requests."""

RENEW = """
for at = 2, #ARGV do
  local claim = claim_of(ARGV[at])
  for _, held in ipairs(claim and claim.held or {}) do
    if held.kind == 'running' then
      redis.call('ZADD', key('r', held.id), text(math.floor(now / 1000) + tonumber(ARGV[1])), ARGV[at])
      redis.call('EXPIRE', key('r', held.id), RUNNING)
    end
  end
  redis.call('EXPIRE', key('k', ARGV[at]), CLAIM)
end
return 'renewed'
"""
"""Arguments: lease in milliseconds, and the open claims."""

SEED = """
local id, kind = ARGV[1], ARGV[2]
if redis.call('HSETNX', hashed(kind, id), 's', '1') == 0 then return 'known' end
redis.call('EXPIRE', hashed(kind, id), LIFETIME[kind] or LIFETIME.period)
for at = 3, #ARGV, 2 do
  if kind ~= 'minute' then
    add(key('p', id), ARGV[at], ARGV[at + 1])
  else
    local bucket = text(math.floor(tonumber(ARGV[at]) / BUCKET))
    if redis.call('HEXISTS', key('w', id), bucket) == 0 then
      redis.call('RPUSH', key('q', id), bucket)
      redis.call('EXPIRE', key('q', id), LIFETIME.minute)
    end
    add(key('w', id), bucket, ARGV[at + 1])
    add(key('w', id), 't', ARGV[at + 1])
  end
end
return 'seeded'
"""
"""Arguments: a limit, its kind, and pairs of time and amount. For a sliding window the time is in Unix
microseconds, the earliest first; otherwise it is the beginning of the period. The first caller creates the
counter."""


MICRO = 1_000_000

CONCURRENT_KIND = "running"
"""The counter kind of running requests."""

Argument = str | int


class Scripts(Struct, frozen=True):
    """The text of every script."""

    take: str
    read_status: str
    settle: str
    renew: str
    seed: str
    release: str


def build_scripts(time: str = TIME) -> Scripts:
    """Returns the scripts. `time`: a Lua expression for the current time."""
    constants = {
        "BUCKETS": BUCKETS,
        "BUCKET": BUCKET // MICROSECOND,
        "DAY": DAY_S,
        "LATE": LATE_S,
        "TIME": time,
        "LARGEST": INTEGERS_END - 1,
    }
    shared_code = SHARED
    for name, value in constants.items():
        shared_code = shared_code.replace(f"%{name}%", str(value))
    return Scripts(*(shared_code + script for script in (TAKE, READ_STATUS, SETTLE, RENEW, SEED, RELEASE)))


class ScriptResult(Struct, frozen=True):
    """The result of the scripts READ_STATUS and TAKE."""

    status: str
    """`ok`, `refused`, or `unknown` if limits have no counter."""
    rows: Sequence[Sequence[int]] = ()
    """For each limit: the used amount, and the microseconds until it is 0."""
    indexes: Sequence[int] = ()
    """Indexes of limits without a counter."""
    refusals: Sequence[Sequence[int]] = ()
    """For each limit without room: its index, microseconds until there is room, and the amount that this
    claim reserved before the request's size was known."""
    now_ms: int = 0
    """Unix milliseconds."""

    @staticmethod
    def parse(reply: object) -> "ScriptResult":
        """Parses the answer of a script. Raises LimitsUnavailable for an unknown form."""
        match reply:
            case ["ok", [*rows]]:
                return ScriptResult("ok", [_parse_integers(row) for row in rows])
            case ["unknown", [*lua_indexes]]:
                indexes = [lua_index - 1 for lua_index in _parse_integers(lua_indexes)]
                return ScriptResult("unknown", indexes=indexes)
            case ["refused", [*rows], [*refusals], int(now_ms)]:
                parsed_refusals = [
                    (lua_index - 1, wait, reserved)
                    for lua_index, wait, reserved in map(_parse_integers, refusals)
                ]
                statuses = [_parse_integers(row) for row in rows]
                return ScriptResult("refused", statuses, refusals=parsed_refusals, now_ms=now_ms)
        raise LimitsUnavailable("Redis sent an answer in an unknown form", retry_after=1.0)

    def build_statuses(self, limits: Sequence[Limit], needed: Sequence[int] = ()) -> tuple[LimitStatus, ...]:
        """Returns the status of each limit. Raises the refusal that lasts longest, if there is any."""
        statuses = tuple(
            LimitStatus(limit, max(0, limit.amount - used), reset / MICRO)
            for limit, (used, reset) in zip(limits, self.rows, strict=True)
        )
        if not self.refusals:
            return statuses
        refusals = (
            (build_refusal(limits[index], needed[index], reserved, wait / MICRO, self.now_ms / 1_000), index)
            for index, wait, reserved in self.refusals
        )
        raise pick_longest(refusals, statuses)


def get_counter_kind(limit: Limit) -> str:
    if limit.measure is Measure.CONCURRENT or limit.window is None:
        return CONCURRENT_KIND
    return str(limit.window)


def encode_limits(limits: Sequence[Limit], needed: Sequence[int], now: float) -> list[Argument]:
    """Encodes limits with the amount requested of each. `now`: Unix seconds."""
    arguments: list[Argument] = []
    for limit, amount in zip(limits, needed, strict=True):
        arguments += [limit.id, get_counter_kind(limit), str(limit.measure), limit.amount, amount]
        if limit.window in (None, Window.MINUTE):
            arguments += (0, 0, 0)
        else:
            arguments += find_period_bounds(limit.window, now)
    return arguments


def encode_claim(claim: str, amounts: Amounts) -> list[Argument]:
    """Encodes a claim with the amounts that it really used."""
    return [claim, amounts.requests, amounts.input_tokens, amounts.output_tokens, amounts.cost]


def encode_seed(limit: Limit, amounts: Sequence[tuple[float, int]], now: float) -> list[Argument]:
    """Encodes the past usage for a new counter: for a calendar period its sum, and for a sliding window each
    amount. `amounts`: pairs of Unix seconds and amount. `now`: Unix seconds."""
    arguments: list[Argument] = [limit.id, get_counter_kind(limit)]
    if limit.window is None:
        return arguments
    if limit.window is not Window.MINUTE:
        begin = find_period(limit.window, now)[0]
        total = sum(amount for at, amount in amounts if at >= begin)
        return [*arguments, begin, min(total, INTEGERS_END - 1)]
    for at, amount in sorted(amounts):
        arguments += [int(at * MICRO), min(amount, INTEGERS_END - 1)]
    return arguments


def _parse_integers(row: object) -> list[int]:
    """Returns a row of integers. Redis sends large integers as text."""
    try:
        if isinstance(row, list):
            return [value if isinstance(value, int) else int(str(value)) for value in row]
    except ValueError:
        pass
    raise LimitsUnavailable("Redis sent an answer in an unknown form", retry_after=1.0)
