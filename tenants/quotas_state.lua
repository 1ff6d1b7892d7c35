-- State of one tenant's quotas, and how time and holds change it; both quota scripts begin with
-- this text. The arithmetic is that of loraplex.tenants.bucket, whose docstring derives it.
--
-- KEYS[1] is a MessagePack map:
--   at_ms             time up to which the levels are drained
--   requests, tokens  buckets: limit, level, floors
--   holds             ids, sizes (tokens), slots, ends_ms, answers
-- The floors and the five columns of `holds` are arrays with an entry per open hold, oldest first:
-- every call reads them all, and flat arrays are read several times faster than a map per hold.
--
-- All numbers are integers. A unit adds MINUTE_MS to a level and each millisecond drains `limit`, so
-- that the highest limit (2e9) stays far below 2^53, up to which Lua's numbers are exact.

local MINUTE_MS = 60000
-- What no longer matters is kept for another minute, in which a clock may be set right.
local KEEP_MS = 60000
local DIMENSIONS = {'requests', 'tokens'}

-- ARGV[1] is the time in ms, or empty for the server's own clock, which all gateways share.
local function clock_ms()
  if ARGV[1] ~= '' then return tonumber(ARGV[1]) end
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

local function divided_up(a, b)
  return math.ceil(a / b)
end

-- Time until a bucket is empty.
local function reset_ms(bucket)
  return divided_up(bucket.level, bucket.limit)
end

-- Position of an open hold, or nil.
local function find(state, id)
  for position, held in ipairs(state.holds.ids) do
    if held == id then return position end
  end
end

-- Ends the hold at a position and gives back `refund`, units by dimension (negative: more was used).
local function close(state, position, refund)
  for _, dimension in ipairs(DIMENSIONS) do
    local bucket, returned = state[dimension], refund[dimension] * MINUTE_MS
    local floor = table.remove(bucket.floors, position)
    bucket.level = math.max(bucket.level - returned, floor)
    -- Only holds older than this one count its units among those that came after them.
    for older = 1, position - 1 do
      bucket.floors[older] = math.max(bucket.floors[older] - returned, floor)
    end
  end
  for _, column in pairs(state.holds) do table.remove(column, position) end
end

-- Lets the time since the last change pass. A hold whose lease is over counts as used in full.
local function advance(state, now_ms)
  local elapsed_ms = math.max(0, now_ms - state.at_ms)
  state.at_ms = now_ms
  for _, dimension in ipairs(DIMENSIONS) do
    local bucket = state[dimension]
    local drained = elapsed_ms * bucket.limit
    bucket.level = math.max(0, bucket.level - drained)
    for position, floor in ipairs(bucket.floors) do
      bucket.floors[position] = math.max(0, floor - drained)
    end
  end
  for position = #state.holds.ids, 1, -1 do
    if state.holds.ends_ms[position] <= now_ms then
      close(state, position, {requests = 0, tokens = 0})
    end
  end
end

-- Writes the state; it goes by itself when nothing in it could matter any more.
local function save(state, now_ms)
  local keep_ms = math.max(reset_ms(state.requests), reset_ms(state.tokens))
  for _, end_ms in ipairs(state.holds.ends_ms) do
    keep_ms = math.max(keep_ms, end_ms - now_ms)
  end
  redis.call('SET', KEYS[1], cmsgpack.pack(state), 'PX', string.format('%.0f', keep_ms + KEEP_MS))
end

-- The tenant's state as of now; nil if nothing is held and nothing drains.
local function load(now_ms)
  local packed = redis.call('GET', KEYS[1])
  if not packed then return nil end
  local state = cmsgpack.unpack(packed)
  local was_set_back = now_ms < state.at_ms
  advance(state, now_ms)
  -- Else nothing would drain until the clock is again where it was.
  if was_set_back then save(state, now_ms) end
  return state
end
