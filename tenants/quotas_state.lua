-- State of limits, and how time and requests change it; all scripts of quotas begin with this text.
-- The arithmetic is that of loraplex.tenants.bucket, whose docstring derives it.
--
-- KEYS[1] has the tenant's open holds; the others, in their order, what the call's limits count.
-- All are MessagePack maps but budgets, which are hashes:
--   holds   ids, ends_ms, sizes
--   rate    ids, ends_ms, floors; at_ms: time up to which it drained; value, level
--   gauge   ids, ends_ms, amounts
--   budget  epoch; store: the server's run that it was reckoned in; spent; reserved; and for each
--           request that reserves `r:ID`
-- `ids` and so on are arrays with an entry per open hold, oldest first: every call reads them all,
-- and flat arrays are read several times faster than a map per hold.
--
-- Beside them, each with a request's id, MessagePack maps:
--   ended   for a minute: what it came to, by dimension of budgets
--   found   where a reckoning found it open: of the budgets that reserve for it since then, keys and
--           dimensions
-- and `reserved`, a sorted set of what is reserved of budgets, by the end of its lease in ms: of each
-- the budget's key, a space, and the request's id.
--
-- ARGV[1] is a MessagePack map: ended, found (what those keys begin with), reserved (that key), now_ms
-- (nil for the server's own clock, which all gateways share), id, size, lease_ms, and limits, each with
-- kind, amount, value, burst, ...
--
-- All numbers are integers. A unit adds MINUTE_MS to a level and each millisecond drains `value`, so
-- that the highest limit (2e9) stays far below 2^53, up to which Lua's numbers are exact.

local MINUTE_MS = 60000
-- What no longer matters is kept for another minute, in which a clock may be set right.
local KEEP_MS = 60000

local asked = cmsgpack.unpack(ARGV[1])
local now_ms = asked.now_ms
if not now_ms then
  local time = redis.call('TIME')
  now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

local function divided_up(a, b)
  return math.ceil(a / b)
end

-- Position of an id, or nil.
local function find(ids, id)
  for position, held in ipairs(ids) do
    if held == id then return position end
  end
end

-- What an array per hold is called, beside ids and ends_ms.
local COLUMN = {holds = 'sizes', rate = 'floors', gauge = 'amounts'}

local function remove(state, kind, position)
  table.remove(state.ids, position)
  table.remove(state.ends_ms, position)
  table.remove(state[COLUMN[kind]], position)
end

local function add(state, kind, id, end_ms, value)
  table.insert(state.ids, id)
  table.insert(state.ends_ms, end_ms)
  table.insert(state[COLUMN[kind]], value)
end

-- Time until a rate is free.
local function reset_ms(state)
  if state.value == 0 then return 0 end
  return divided_up(state.level, state.value)
end

local function drain(state)
  local drained = math.max(0, now_ms - state.at_ms) * state.value
  state.at_ms = now_ms
  state.level = math.max(0, state.level - drained)
  for position, floor in ipairs(state.floors) do
    state.floors[position] = math.max(0, floor - drained)
  end
end

local function ended_key(id)
  return asked.ended .. id
end

local function found_key(id)
  return asked.found .. id
end

local function found(id)
  local packed = redis.call('GET', found_key(id))
  return packed and cmsgpack.unpack(packed) or {}
end

-- From now on a reservation is its owner's for so long: `XX` only one that is there, `CH` any.
local function lease(which, key, id)
  local end_ms = string.format('%.0f', now_ms + asked.lease_ms)
  redis.call('ZADD', asked.reserved, which, end_ms, key .. ' ' .. id)
end

-- The state of a kind as of now, and whether a clock was set back: then it must be saved, else
-- nothing would drain until the clock is again where it was. A hold whose lease is over counts no
-- longer in gauges, and as used in full in rates.
local function load(kind, key, value)
  local packed, was_set_back = redis.call('GET', key), false
  if not packed then
    local state = {ids = {}, ends_ms = {}, [COLUMN[kind]] = {}}
    if kind == 'rate' then state.at_ms, state.value, state.level = now_ms, value, 0 end
    return state, false
  end
  local state = cmsgpack.unpack(packed)
  if kind == 'rate' then
    was_set_back = now_ms < state.at_ms
    drain(state)
  end
  for position = #state.ids, 1, -1 do
    if state.ends_ms[position] <= now_ms then remove(state, kind, position) end
  end
  return state, was_set_back
end

-- Writes a state; it goes by itself when nothing in it could matter any more.
local function save(kind, key, state)
  local keep_ms = kind == 'rate' and reset_ms(state) or 0
  if keep_ms == 0 and #state.ids == 0 then
    redis.call('DEL', key)
    return
  end
  for _, end_ms in ipairs(state.ends_ms) do keep_ms = math.max(keep_ms, end_ms - now_ms) end
  redis.call('SET', key, cmsgpack.pack(state), 'PX', string.format('%.0f', keep_ms + KEEP_MS))
end

local function take(kind, state, id, end_ms, amount)
  if kind == 'gauge' then return add(state, kind, id, end_ms, amount) end
  local units = amount * MINUTE_MS
  state.level = state.level + units
  for older, floor in ipairs(state.floors) do state.floors[older] = floor + units end
  add(state, kind, id, end_ms, 0)
end

-- Ends what a position counts and gives back `refund` units of a rate (negative: more was used).
local function close(kind, state, position, refund)
  if kind == 'rate' then
    local units, floor = refund * MINUTE_MS, state.floors[position]
    state.level = math.max(state.level - units, floor)
    -- Only holds older than this one count its units among those that came after them.
    for older = 1, position - 1 do
      state.floors[older] = math.max(state.floors[older] - units, floor)
    end
  end
  remove(state, kind, position)
end

local function used(kind, state)
  if kind == 'rate' then return divided_up(state.level, MINUTE_MS) end
  local sum = 0
  for _, amount in ipairs(state.amounts) do sum = sum + amount end
  return sum
end

-- Which run of a server this is. A copy of a budget that another run had may lack what was written
-- last: a replica that took over, or a file that was read at the start, is never quite up to date.
local run_id
local function store()
  run_id = run_id or string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
  return run_id
end

-- Spent and reserved of a budget, and what the request reserves of it; nil if that is not known.
local function budget(key, epoch, id)
  local told = redis.call('HMGET', key, 'epoch', 'store', 'spent', 'reserved', 'r:' .. id)
  if told[1] ~= epoch or told[2] ~= store() then return nil end
  return {used = tonumber(told[3]) + tonumber(told[4]), mine = told[5]}
end
