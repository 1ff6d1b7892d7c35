-- What is counted of one budget; nothing is written.
--
-- Of ARGV[1]: id (empty), epoch. Returns {'spent', amount, and of each request that reserves: 'r:ID',
-- amount}, or nothing where that epoch is not known.

local answer = {}
if not budget(KEYS[2], asked.epoch, asked.id) then return answer end
local told = redis.call('HGETALL', KEYS[2])
for at = 1, #told, 2 do
  if told[at] == 'spent' or string.sub(told[at], 1, 2) == 'r:' then
    table.insert(answer, told[at])
    table.insert(answer, told[at + 1])
  end
end
return answer
