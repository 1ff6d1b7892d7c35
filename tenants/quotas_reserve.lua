-- Admission of one request: what it may take of all limits is held, or of none.
--
-- Of ARGV[1]: id, size, lease_ms, gauge_wait_ms; limits: kind, amount, value, burst, is_enforced, and
-- of budgets epoch, end_ms.
-- Returns {'conflict', size}, {'unknown', position, ...}, {'exhausted', position},
-- {'refused', position, wait in ms}, or {'held', and for each limit: units used, ms until
-- that is 0, 1 if it counts the request, else 0}.

local holds = load('holds', KEYS[1])
local position = find(holds.ids, asked.id)
if position and holds.sizes[position] ~= asked.size then
  return {'conflict', holds.sizes[position]}
end

local states, must_save, unknown = {}, {}, {'unknown'}
for i, limit in ipairs(asked.limits) do
  if limit.kind == 'budget' then
    states[i] = budget(KEYS[i + 1], limit.epoch, asked.id)
    if not states[i] then table.insert(unknown, i) end
  else
    states[i], must_save[i] = load(limit.kind, KEYS[i + 1], limit.value)
    if limit.kind == 'rate' and states[i].value ~= limit.value then
      states[i].value, must_save[i] = limit.value, true
    end
  end
end
if #unknown > 1 then return unknown end

-- Time until the amount fits: 0 if it does now.
local function wait_ms(limit, state)
  if limit.amount == 0 then return 0 end
  if limit.kind == 'budget' then
    return state.used + limit.amount > limit.value and limit.end_ms or 0
  elseif limit.kind == 'gauge' then
    return used('gauge', state) + limit.amount > limit.value and asked.gauge_wait_ms or 0
  elseif limit.value == 0 then
    return asked.gauge_wait_ms
  end
  local excess = state.level + (limit.amount - limit.burst) * MINUTE_MS
  return math.max(0, divided_up(excess, limit.value))
end

-- All checks come before any write. Of what refuses, that which takes longest is told, budgets first.
-- What holds already is counted by what it was admitted by; only budgets may be reckoned since then.
local fits, refused, exhausted, longest_ms, last_ms = {}, nil, nil, 0, 0
for i, limit in ipairs(asked.limits) do
  local is_counted = position ~= nil
  if limit.kind == 'budget' then is_counted = states[i].mine end
  if not is_counted then
    local ms = wait_ms(limit, states[i])
    fits[i] = ms == 0 or (limit.kind == 'budget' and not limit.is_enforced)
    if ms > 0 and limit.is_enforced then
      if limit.kind ~= 'budget' then
        if ms > longest_ms then refused, longest_ms = i, ms end
      elseif ms > last_ms then
        exhausted, last_ms = i, ms
      end
    end
  end
end
if exhausted or refused then
  -- From now on a level drains at the new value; nothing is taken.
  for i, limit in ipairs(asked.limits) do
    if must_save[i] then save(limit.kind, KEYS[i + 1], states[i]) end
  end
  if exhausted then return {'exhausted', exhausted} end
  return {'refused', refused, longest_ms}
end

local end_ms = now_ms + asked.lease_ms
local answer = {'held'}
for i, limit in ipairs(asked.limits) do
  local key, state, is_held, reset = KEYS[i + 1], states[i], true, 0
  if limit.kind == 'budget' then
    if fits[i] then
      redis.call('HINCRBY', key, 'reserved', limit.amount)
      redis.call('HSET', key, 'r:' .. asked.id, limit.amount)
      state.used = state.used + limit.amount
    end
    lease('CH', key, asked.id)
    reset = math.max(0, limit.end_ms - now_ms)
  else
    if fits[i] then
      take(limit.kind, state, asked.id, end_ms, limit.amount)
    else
      is_held = find(state.ids, asked.id) ~= nil
    end
    if fits[i] or must_save[i] then save(limit.kind, key, state) end
    if limit.kind == 'rate' then reset = reset_ms(state) end
  end
  table.insert(answer, limit.kind == 'budget' and state.used or used(limit.kind, state))
  table.insert(answer, reset)
  table.insert(answer, is_held and 1 or 0)
end
if not position then
  add(holds, 'holds', asked.id, end_ms, asked.size)
  save('holds', KEYS[1], holds)
end
-- Last, since a server that is full refuses only scripts that have written nothing yet.
redis.call('DEL', ended_key(asked.id))
return answer
