-- Admission of one request: its slots, one request and its tokens are held, all of them or nothing.
--
-- ARGV: 1 time, 2 request id, 3 tokens, 4 requests per minute, 5 tokens per minute, 6 concurrency,
--       7 lease in ms, 8 wait in ms that is told for a slot, 9 slots
-- Returns {'refused', dimension, wait in ms}, or {'held', tokens, rates}: limit, remaining and
-- reset in ms of requests, then of tokens. The same request gets that again while its hold is open.

local now_ms = clock_ms()
local id, tokens, concurrency = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[6])
local units = {requests = 1, tokens = tokens}
local limits = {requests = tonumber(ARGV[4]), tokens = tonumber(ARGV[5])}

local state = load(now_ms) or {
  at_ms = now_ms,
  requests = {limit = limits.requests, level = 0, floors = {}},
  tokens = {limit = limits.tokens, level = 0, floors = {}},
  holds = {ids = {}, sizes = {}, slots = {}, ends_ms = {}, answers = {}},
}
local holds = state.holds
local position = find(state, id)
if position then return {'held', holds.sizes[position], holds.answers[position]} end

local is_limit_new = false
for _, dimension in ipairs(DIMENSIONS) do
  local bucket = state[dimension]
  is_limit_new = is_limit_new or bucket.limit ~= limits[dimension]
  bucket.limit = limits[dimension]
end

-- Of the limits that do not fit, the one that takes longest is told.
local refused, longest_ms = nil, 0
local function wait(dimension, wait_ms)
  if wait_ms > longest_ms then refused, longest_ms = dimension, wait_ms end
end
for _, dimension in ipairs(DIMENSIONS) do
  local bucket = state[dimension]
  local excess = bucket.level + (units[dimension] - bucket.limit) * MINUTE_MS
  wait(dimension, divided_up(excess, bucket.limit))
end
local num_slots = tonumber(ARGV[9])
for _, slots in ipairs(holds.slots) do num_slots = num_slots + slots end
if num_slots > concurrency then wait('concurrency', tonumber(ARGV[8])) end
if refused then
  -- From now on the levels drain at the new limit; nothing is taken.
  if is_limit_new then save(state, now_ms) end
  return {'refused', refused, longest_ms}
end

local rates = {}
for _, dimension in ipairs(DIMENSIONS) do
  local bucket, amount = state[dimension], units[dimension] * MINUTE_MS
  bucket.level = bucket.level + amount
  for older, floor in ipairs(bucket.floors) do bucket.floors[older] = floor + amount end
  table.insert(bucket.floors, 0)
  local remaining = math.max(0, bucket.limit - divided_up(bucket.level, MINUTE_MS))
  for _, number in ipairs({bucket.limit, remaining, reset_ms(bucket)}) do
    table.insert(rates, string.format('%.0f', number))
  end
end
local answer = table.concat(rates, ' ')
table.insert(holds.ids, id)
table.insert(holds.sizes, tokens)
table.insert(holds.slots, tonumber(ARGV[9]))
table.insert(holds.ends_ms, now_ms + tonumber(ARGV[7]))
table.insert(holds.answers, answer)
save(state, now_ms)
return {'held', tokens, answer}
