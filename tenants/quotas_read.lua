-- How limits stand, and what is held; nothing is written.
--
-- Of ARGV[1]: id (empty); limits: kind, value, and of budgets epoch, end_ms.
-- Returns {ids of open holds, their sizes, and for each limit: 1 if it is known, else 0, units used, ms until
-- that is 0}.

local holds = load('holds', KEYS[1])
local answer = {holds.ids, holds.sizes}
for i, limit in ipairs(asked.limits) do
  local key, state, count, reset = KEYS[i + 1], nil, 0, 0
  if limit.kind == 'budget' then
    state = budget(key, limit.epoch, asked.id)
    count = state and state.used or 0
    reset = math.max(0, limit.end_ms - now_ms)
  else
    state = load(limit.kind, key, limit.value)
    count = used(limit.kind, state)
    if limit.kind == 'rate' then reset = reset_ms(state) end
  end
  table.insert(answer, state and 1 or 0)
  table.insert(answer, count)
  table.insert(answer, reset)
end
return answer
