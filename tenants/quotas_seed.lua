-- Replaces what is known of budgets, unless it is of this epoch or a newer one.
--
-- KEYS[1] is not used. Of each limit of ARGV[1]: epoch, dimension, spent, reserved (of each request its id and
-- amount, one after the other), keep_until_ms.

for i, limit in ipairs(asked.limits) do
  local key = KEYS[i + 1]
  local known = redis.call('HGET', key, 'epoch')
  if not known or tonumber(known) < tonumber(limit.epoch) then
    local reserved, spent = 0, limit.spent
    local keep_ms = math.max(KEEP_MS, limit.keep_until_ms - now_ms)
    redis.call('DEL', key)
    for at = 1, #limit.reserved, 2 do
      local id, amount = limit.reserved[at], limit.reserved[at + 1]
      -- What has ended since the database was read is spent already, and nobody will say so again.
      local ended = redis.call('GET', ended_key(id))
      local actual = ended and cmsgpack.unpack(ended)[limit.dimension]
      if actual then
        spent = spent + actual
      else
        redis.call('HSET', key, 'r:' .. id, amount)
        reserved = reserved + amount
        local budgets = found(id)
        budgets[key] = limit.dimension
        redis.call('SET', found_key(id), cmsgpack.pack(budgets), 'PX', string.format('%.0f', keep_ms))
        lease('CH', key, id)
      end
    end
    redis.call('HSET', key, 'epoch', limit.epoch, 'store', store(), 'spent', spent,
      'reserved', reserved)
    redis.call('PEXPIRE', key, keep_ms)
  end
end
return 1
