-- The table redis of scripts, or server as Valkey calls it: calls of commands, and what else Python
-- answers. Errors have the words of the server whose name is used.
local name, replies, state, die, command, permitted, sha1hex, log, set_resp, version, version_number = ...
local error, select, setmetatable, tonumber, tostring, type, unpack =
  error, select, setmetatable, tonumber, tostring, type, unpack
local find, gsub, match, sub = string.find, string.gsub, string.match, string.sub
local concat, floor = table.concat, math.floor
local parse, number_text = replies.parse, replies.number_text

-- What Python returns beside a value: the value is no reply yet.
local ENCODED, FAILED, REFUSED, DEAD, FULL = 1, 2, 3, 4, 5

local of_redis = name == 'redis'
local lib = of_redis and 'redis lib ' or ''
local NO_ARGUMENT = 'Please specify at least one argument for this ' .. lib .. 'call'
local NO_TEXT = of_redis and 'Lua redis lib command arguments must be strings or integers'
  or 'Command arguments must be strings or integers'

-- Run a command; its arguments must be strings or numbers.
local function invoke(...)
  local count = select('#', ...)
  if count == 2 or count == 3 then -- most calls
    local name, key, value = ...
    if type(name) == 'string' and type(key) == 'string' and (count == 2 or type(value) == 'string') then
      return command(...)
    end
  end
  if count == 0 then return 'ERR ' .. NO_ARGUMENT, REFUSED end
  local args = { ... }
  for place = 1, count do
    if type(args[place]) ~= 'string' then
      for index = place, count do
        local kind = type(args[index])
        if kind == 'number' then
          args[index] = number_text(args[index])
        elseif kind ~= 'string' then
          return 'ERR ' .. NO_TEXT, REFUSED
        end
      end
      return command(unpack(args, 1, count))
    end
  end
  return command(...)
end

-- What Valkey says instead of a text of Redis.
local function of_valkey(text)
  text = gsub(text, '^ERR This Redis command', 'ERR This Valkey command')
  return (gsub(text, '^(ERR [%a ]-) Redis command', '%1 command'))
end

local function error_of(value, kind)
  if kind == DEAD then die(value or 'ERR internal error') end
  if kind == FULL then error('not enough memory', 0) end
  if not of_redis then value = of_valkey(value) end
  return { err = value, ignore_error_stats_update = kind == FAILED or nil }
end

-- Return the reply of a command, or its error as the second value.
local function reply_of(value, kind)
  if kind == nil then
    if value == true then return { ok = 'OK' } end
    return value
  end
  if kind == ENCODED then return (parse(value, 1)) end
  return nil, error_of(value, kind)
end

local function call(...)
  local reply, failure = reply_of(invoke(...))
  if failure then error(failure, 0) end
  return reply
end

local function protected_call(...)
  local reply, failure = reply_of(invoke(...))
  return failure or reply
end

-- ---------------------------------------------------------------- the table redis

local function error_reply(...)
  local text = ...
  if select('#', ...) ~= 1 or type(text) ~= 'string' then
    return { err = 'ERR wrong number or type of arguments' }
  end
  text = match(text, '^-?([^%z]*)') -- a text of C ends at a zero
  local blank = find(text, ' ', 1, true)
  local code = blank and sub(text, 1, blank - 1) or 'ERR'
  text = match(text, '^[\r\n]*(.*)', (blank or 0) + 1)
  text = sub(text, 1, find(text, '[^\r\n][\r\n]*$') or 0) -- '[\r\n]+$' alone takes the square of the time
  return { err = code .. ' ' .. text }
end

local function status_reply(...)
  local text = ...
  if select('#', ...) ~= 1 or type(text) ~= 'string' then
    return { err = 'ERR wrong number or type of arguments' }
  end
  return { ok = text }
end

local function fail(message)
  error({ err = 'ERR ' .. message }, 0)
end

local redis = {
  call = call,
  pcall = protected_call,
  error_reply = error_reply,
  status_reply = status_reply,
  REDIS_VERSION = version,
  REDIS_VERSION_NUM = version_number,
  LOG_DEBUG = 0,
  LOG_VERBOSE = 1,
  LOG_NOTICE = 2,
  LOG_WARNING = 3,
  REPL_NONE = 0,
  REPL_AOF = 1,
  REPL_SLAVE = 2,
  REPL_REPLICA = 2,
  REPL_ALL = 3,
}

function redis.sha1hex(...)
  local value = ...
  if select('#', ...) ~= 1 then fail('wrong number of arguments') end
  local kind = type(value)
  if kind == 'number' then value = tostring(value) end
  local digest = sha1hex(type(value) == 'string' and value or '')
  if not digest then error('not enough memory', 0) end
  return digest
end

function redis.log(...)
  local count = select('#', ...)
  if count < 2 then fail(name .. '.log() requires two arguments or more.') end
  local level = tonumber((...))
  if not level then fail('First argument must be a number (log level).') end
  if not (level > -1 and level < 4) then fail('Invalid log level.') end
  local words, texts = { ... }, {}
  for place = 2, count do
    local kind = type(words[place])
    if kind == 'string' or kind == 'number' then texts[#texts + 1] = tostring(words[place]) end
  end
  log(floor(level < 0 and 0 or level), concat(texts, ' '))
end

function redis.setresp(...)
  if select('#', ...) ~= 1 then fail(name .. '.setresp() requires one argument.') end
  local version = floor(tonumber((...)) or 0)
  if version ~= 2 and version ~= 3 then fail('RESP version must be 2 or 3.') end
  state.resp = version
  set_resp(version)
end

function redis.set_repl(...)
  if select('#', ...) ~= 1 then fail(name .. '.set_repl() requires one argument.') end
  local flags = tonumber((...)) or 0
  if not (flags > -1 and flags < 4) then
    fail('Invalid replication flags. Use REPL_AOF, REPL_REPLICA, REPL_ALL or REPL_NONE.')
  end
end

function redis.replicate_commands()
  return true
end

function redis.breakpoint()
  return false
end

function redis.debug() end

function redis.acl_check_cmd(...)
  local count = select('#', ...)
  if count == 0 then fail(NO_ARGUMENT) end
  local args = { ... }
  for place = 1, count do
    local kind = type(args[place])
    if kind == 'number' then
      args[place] = number_text(args[place])
    elseif kind ~= 'string' then
      fail(NO_TEXT)
    end
  end
  local allowed = permitted(unpack(args, 1, count))
  if allowed == nil then fail('Invalid command passed to ' .. name .. '.acl_check_cmd()') end
  return allowed
end

-- Valkey's constant, with the name that HELLO has. Loops over the table leave it out: Redis has none.
setmetatable(redis, { __index = { SERVER_NAME = 'redis' } })

return redis, fail
