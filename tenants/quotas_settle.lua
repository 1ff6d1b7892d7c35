-- What happens to an open hold later; no effect once it ended, or if another size is held.
--
-- Of ARGV[1]: id, size; to renew it lease_ms; to end it spent (of each dimension of budgets), and of
-- each limit: kind, value, refund, dimension. A request ends in all budgets that reserve for it, whether it names
-- them or a reckoning found it open since.

local holds = load('holds', KEYS[1])
local held = find(holds.ids, asked.id)
if held and holds.sizes[held] ~= asked.size then return 0 end

-- What a budget reserves waits for its end however long a lease is over.
local function spend(key, actual)
  redis.call('ZREM', asked.reserved, key .. ' ' .. asked.id)
  local reserved = redis.call('HGET', key, 'r:' .. asked.id)
  if reserved then
    redis.call('HDEL', key, 'r:' .. asked.id)
    redis.call('HINCRBY', key, 'reserved', -tonumber(reserved))
    redis.call('HINCRBY', key, 'spent', actual)
  end
end

for i, limit in ipairs(asked.limits) do
  local key = KEYS[i + 1]
  if limit.kind == 'budget' then
    if asked.lease_ms then
      lease('XX', key, asked.id)
    else
      spend(key, asked.spent[limit.dimension])
    end
  elseif held then
    local state = load(limit.kind, key, limit.value)
    local position = find(state.ids, asked.id)
    if position then
      if asked.lease_ms then
        state.ends_ms[position] = now_ms + asked.lease_ms
      else
        close(limit.kind, state, position, limit.refund)
      end
      save(limit.kind, key, state)
    end
  end
end
if held then
  if asked.lease_ms then
    holds.ends_ms[held] = now_ms + asked.lease_ms
  else
    remove(holds, 'holds', held)
  end
  save('holds', KEYS[1], holds)
end
for key, dimension in pairs(found(asked.id)) do
  if asked.lease_ms then
    lease('XX', key, asked.id)
  else
    spend(key, asked.spent[dimension])
  end
end
if not asked.lease_ms then
  redis.call('DEL', found_key(asked.id))
  -- A reckoning that is on its way may have read the database before this request ended.
  redis.call('SET', ended_key(asked.id), cmsgpack.pack(asked.spent), 'PX', KEEP_MS, 'NX')
end
return 1
