-- Reservations of budgets whose leases ended up to a time ago, the longest first.
--
-- Of ARGV[1]: lapsed_ms, most. Returns {budget's key and request's id with a space between, ...}.

local answer = {}
local until_ms = string.format('%.0f', now_ms - asked.lapsed_ms)
local lapsed = redis.call('ZRANGEBYSCORE', asked.reserved, '-inf', until_ms, 'LIMIT', 0, asked.most)
for _, member in ipairs(lapsed) do
  local key, id = string.match(member, '^(%S+) (.+)$')
  if redis.call('HEXISTS', key, 'r:' .. id) == 1 then
    table.insert(answer, member)
  else
    -- A reckoning since then lacks it, or the month is long over.
    redis.call('ZREM', asked.reserved, member)
  end
end
return answer
