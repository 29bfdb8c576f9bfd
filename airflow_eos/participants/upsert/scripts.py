"""The Lua scripts that Redis runs, each in one step.

Versions are digits of a fixed width, so that text compares as the numbers do.
"""

from __future__ import annotations

VERSION = "_eos"
"""The field of a row that holds its version."""

# KEYS: the target's hash. ARGV: location, checkpoint. Where somebody has removed the whole
# hash, the server's clock makes an epoch greater than all that were; else none is asked.
CLAIM = """
if redis.call('HEXISTS', KEYS[1], 'owner_location') == 1 then return 0 end
local epoch = tonumber(redis.call('HGET', KEYS[1], 'last_epoch') or '0') + 1
if epoch == 1 then
  local time = redis.call('TIME')
  epoch = time[1] * 1000 + math.floor(time[2] / 1000)
end
epoch = string.format('%.0f', epoch)
redis.call('HSET', KEYS[1], 'last_epoch', epoch, 'owner_epoch', epoch,
  'owner_location', ARGV[1], 'owner_checkpoint', ARGV[2])
return 1
"""

# KEYS: the target's hash. ARGV: checkpoint, batch, attempt, the decision's nonce.
NOTE = """
if redis.call('HGET', KEYS[1], 'owner_checkpoint') ~= ARGV[1] then return 0 end
local batch = tonumber(redis.call('HGET', KEYS[1], 'note_batch') or '-1')
local attempt = tonumber(redis.call('HGET', KEYS[1], 'note_attempt') or '0')
local newer = tonumber(ARGV[2]) > batch
  or (tonumber(ARGV[2]) == batch and tonumber(ARGV[3]) >= attempt)
if newer then
  redis.call('HSET', KEYS[1], 'note_batch', ARGV[2], 'note_attempt', ARGV[3],
    'note_decision', ARGV[4])
end
return 1
"""

# KEYS: the target's hash. ARGV: what the tally is known to be at least.
COUNT = """
local tally = tonumber(redis.call('HGET', KEYS[1], 'tally') or '0')
if tally < tonumber(ARGV[1]) then return -1 end
return redis.call('HINCRBY', KEYS[1], 'tally', 1)
"""

# KEYS: the target's hash, then the rows. ARGV: checkpoint, order, number of columns n, their names;
# then for each row whether it is deleted ('1'), and n values: '+' and the value, or '-' for a null.
APPLY = """
if redis.call('HGET', KEYS[1], 'owner_checkpoint') ~= ARGV[1] then return -1 end
local epoch = redis.call('HGET', KEYS[1], 'owner_epoch')
local version = string.rep('0', 16 - #epoch) .. epoch .. ARGV[2]
local n = tonumber(ARGV[3])
local at = 4 + n
local older = 0
for i = 2, #KEYS do
  if redis.call('PTTL', KEYS[i]) >= 0 then
    return redis.error_reply('EXPIRY the row ' .. KEYS[i] .. ' has a time to live, and would be '
      .. 'forgotten with its version: PERSIST it')
  end
  local stands = redis.call('HGET', KEYS[i], '_eos')
  if stands and stands > version then
    older = older + 1
  else
    local fields = {'_eos', version}
    if ARGV[at] == '0' then
      for column = 1, n do
        local value = ARGV[at + column]
        if string.byte(value) == 43 then
          fields[#fields + 1] = ARGV[3 + column]
          fields[#fields + 1] = string.sub(value, 2)
        end
      end
    end
    redis.call('DEL', KEYS[i])
    redis.call('HSET', KEYS[i], unpack(fields))
  end
  at = at + n + 1
end
return older
"""
