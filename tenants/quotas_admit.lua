-- Admission of one request: a slot, one request and its tokens are held, all of them or nothing.
--
-- ARGV: 1 time, 2 request id, 3 tokens, 4 requests per minute, 5 tokens per minute, 6 concurrency,
--       7 lease in ms, 8 wait in ms that is told for a slot
-- Returns {'held', tokens, limit, remaining and reset in ms of requests, then of tokens}, which the
-- same request gets again while its hold is open, or {'refused', dimension, wait in ms}.

local now_ms = clock_ms()
local id, tokens, concurrency = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[6])
local units = {requests = 1, tokens = tokens}
local limits = {requests = tonumber(ARGV[4]), tokens = tonumber(ARGV[5])}

local state = load(now_ms) or {
  at_ms = now_ms,
  requests = {limit = limits.requests, level = 0},
  tokens = {limit = limits.tokens, level = 0},
  holds = {},
}
local _, held = find(state, id)
if held then return held.answer end

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
  wait(dimension, divided_up(bucket.level + (units[dimension] - bucket.limit) * MINUTE_MS, bucket.limit))
end
if #state.holds >= concurrency then wait('concurrency', tonumber(ARGV[8])) end
if refused then
  -- From now on the levels drain at the new limit; nothing is taken.
  if is_limit_new then save(state, now_ms) end
  return {'refused', refused, longest_ms}
end

local answer = {'held', tokens}
for _, dimension in ipairs(DIMENSIONS) do
  local bucket, amount = state[dimension], units[dimension] * MINUTE_MS
  bucket.level = bucket.level + amount
  for _, older in ipairs(state.holds) do
    older.floors[dimension] = older.floors[dimension] + amount
  end
  table.insert(answer, bucket.limit)
  table.insert(answer, math.max(0, bucket.limit - divided_up(bucket.level, MINUTE_MS)))
  table.insert(answer, reset_ms(bucket))
end
table.insert(state.holds, {
  id = id,
  tokens = tokens,
  expires_ms = now_ms + tonumber(ARGV[7]),
  floors = {requests = 0, tokens = 0},
  answer = answer,
})
save(state, now_ms)
return answer
