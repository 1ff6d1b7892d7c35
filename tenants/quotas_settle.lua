-- What happens to an open hold later; no effect once it ended, or if another size is held.
--
-- ARGV: 1 time, 2 request id, 3 tokens that are held,
--       4 'renew', with 5 lease in ms
--         'settle', with 5 requests and 6 tokens to give back (negative: more was used)
-- Returns 1 if the hold was open, else 0.

local now_ms = clock_ms()
local state = load(now_ms)
if not state then return 0 end
local position = find(state, ARGV[2])
if not position or state.holds.sizes[position] ~= tonumber(ARGV[3]) then return 0 end
if ARGV[4] == 'renew' then
  state.holds.ends_ms[position] = now_ms + tonumber(ARGV[5])
else
  close(state, position, {requests = tonumber(ARGV[5]), tokens = tonumber(ARGV[6])})
end
save(state, now_ms)
return 1
