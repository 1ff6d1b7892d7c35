-- State of one tenant's quotas, and how time and holds change it; both quota scripts begin with
-- this text. The arithmetic is that of loraplex.tenants.bucket, whose docstring derives it.
--
-- KEYS[1] is a MessagePack map: at_ms; for `requests` and for `tokens` a bucket of limit and level;
-- and the open holds, oldest first: id, tokens, expires_ms, floors, and the answer they were given.
--
-- All numbers are integers. A unit adds MINUTE_MS to a level and each millisecond drains `limit`, so
-- that the highest limit (2e9) stays far below 2^53, up to which Lua's numbers are exact.

local MINUTE_MS = 60000
-- What is kept without need: by then a gateway's retry and the server's clock have settled.
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

local function find(state, id)
  for position, hold in ipairs(state.holds) do
    if hold.id == id then return position, hold end
  end
end

-- Ends the hold at a position and gives back `refund`, units by dimension (negative: more was used).
local function close(state, position, refund)
  local hold = table.remove(state.holds, position)
  for _, dimension in ipairs(DIMENSIONS) do
    local floor, returned = hold.floors[dimension], refund[dimension] * MINUTE_MS
    state[dimension].level = math.max(state[dimension].level - returned, floor)
    -- Only holds older than this one count its units among those that came after them.
    for older = 1, position - 1 do
      local floors = state.holds[older].floors
      floors[dimension] = math.max(floors[dimension] - returned, floor)
    end
  end
end

-- Lets the time since the last change pass. A hold whose lease is over counts as used in full.
local function advance(state, now_ms)
  local elapsed_ms = math.max(0, now_ms - state.at_ms)
  state.at_ms = now_ms
  for _, dimension in ipairs(DIMENSIONS) do
    local bucket = state[dimension]
    local drained = elapsed_ms * bucket.limit
    bucket.level = math.max(0, bucket.level - drained)
    for _, hold in ipairs(state.holds) do
      hold.floors[dimension] = math.max(0, hold.floors[dimension] - drained)
    end
  end
  for position = #state.holds, 1, -1 do
    if state.holds[position].expires_ms <= now_ms then
      close(state, position, {requests = 0, tokens = 0})
    end
  end
end

-- Time until a bucket is empty.
local function reset_ms(bucket)
  return divided_up(bucket.level, bucket.limit)
end

-- Writes the state; it goes by itself when nothing in it could matter any more.
local function save(state, now_ms)
  local keep_ms = math.max(reset_ms(state.requests), reset_ms(state.tokens))
  for _, hold in ipairs(state.holds) do
    keep_ms = math.max(keep_ms, hold.expires_ms - now_ms)
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
