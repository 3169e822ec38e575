-- The sandbox of scripts. It is loaded first into a new Lua state, takes everything that a script
-- may not have out of reach, and returns the functions that Python calls.
--
-- Python functions are upvalues of functions here and nowhere else. They get and return strings,
-- numbers, booleans and nil, and never raise. PUC Lua 5.1 has no read-only tables: a script sees an
-- empty proxy of each shared table, and every function that reads or writes tables raw knows them.

local command, permitted, sha1hex, log, set_resp, tick, version, version_number = ...

-- Instructions of one coroutine between two looks at the clock: at first, and later, where fewer
-- are taken if they take long.
local STEP, STEP_MIN, STEP_MAX = 1000, 100, 10000
local LONG_S = 0.01
local SWITCHES = 100 -- starts and yields of coroutines between two looks at the clock
local DEPTH_MAX = 7995 -- Redis's depth of replies: the Lua stack ends there
local READONLY = 'Attempt to modify a readonly table'

local assert, error, type, tostring, tonumber, select, unpack, rawequal, ipairs =
  assert, error, type, tostring, tonumber, select, unpack, rawequal, ipairs
local next, pairs, rawget, rawset, getmetatable, setmetatable =
  next, pairs, rawget, rawset, getmetatable, setmetatable
local raw_pcall, raw_xpcall, loadstring, setfenv = pcall, xpcall, loadstring, setfenv
local sethook, getinfo, clock = debug.sethook, debug.getinfo, os.clock
local null = cjson.null
local resp = 2 -- the protocol in which the script gets replies
local byte, find, format, rep, sub = string.byte, string.find, string.format, string.rep, string.sub
local gmatch, gsub, match = string.gmatch, string.gsub, string.match
local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min
local concat, insert, remove, setn, sort =
  table.concat, table.insert, table.remove, table.setn, table.sort
local create, resume, wrap, yield = coroutine.create, coroutine.resume, coroutine.wrap, coroutine.yield
local fixed_parameters = varargs

local PRELUDE = getinfo(1, 'S').source
local POSITION = '^%[string "sandbox"%]:%d+: '
local OURS = { [PRELUDE] = true } -- chunks in which no error of a script stands
for _, name in ipairs({ 'arguments', 'ieee754', 'bit', 'cjson', 'cmsgpack', 'struct' }) do
  OURS['=' .. name] = true
end

-- ---------------------------------------------------------------- read-only tables

local shown = setmetatable({}, { __mode = 'k' }) -- proxy -> the table that it shows
local metatables = setmetatable({}, { __mode = 'k' }) -- proxy -> what getmetatable returns

local function refuse()
  error(READONLY, 2)
end

local function protect(real)
  local proxy = setmetatable({}, { __index = real, __newindex = refuse, __metatable = false })
  shown[proxy] = real
  return proxy
end

local function wrong(position, name, expected, value)
  error(format("bad argument #%d to '%s' (%s expected, got %s)", position, name, expected, type(value)), 3)
end

local function safe_next(t, key)
  if shown[t] then return next(shown[t], key) end
  if type(t) ~= 'table' then wrong(1, 'next', 'table', t) end
  return next(t, key)
end

local function safe_pairs(t)
  if type(t) ~= 'table' then wrong(1, 'pairs', 'table', t) end
  return safe_next, t, nil
end

local function safe_rawget(t, key)
  if type(t) ~= 'table' then wrong(1, 'rawget', 'table', t) end
  return rawget(shown[t] or t, key)
end

local function safe_rawset(t, key, value)
  if shown[t] then error(READONLY, 0) end
  if type(t) ~= 'table' then wrong(1, 'rawset', 'table', t) end
  return rawset(t, key, value)
end

local string_metatable
local function safe_getmetatable(value)
  if shown[value] then return metatables[value] end
  local kind = type(value)
  if kind == 'string' then return string_metatable end
  if kind == 'table' then return getmetatable(value) end
  return nil
end

local function safe_setmetatable(t, metatable)
  if shown[t] then error(READONLY, 0) end
  if type(t) ~= 'table' then wrong(1, 'setmetatable', 'table', t) end
  if metatable ~= nil and type(metatable) ~= 'table' then
    error("bad argument #2 to 'setmetatable' (nil or table expected)", 2)
  end
  if shown[metatable] then error(READONLY, 0) end
  return setmetatable(t, metatable)
end

-- The functions of the table library that change their first argument.
local function safe_remove(t, ...)
  if shown[t] then error(READONLY, 0) end
  if type(t) ~= 'table' then wrong(1, 'remove', 'table', t) end
  return remove(t, ...)
end

local function safe_setn(t, ...)
  if shown[t] then error(READONLY, 0) end
  if type(t) ~= 'table' then wrong(1, 'setn', 'table', t) end
  return setn(t, ...)
end

local function safe_sort(t, ...)
  if shown[t] then error(READONLY, 0) end
  if type(t) ~= 'table' then wrong(1, 'sort', 'table', t) end
  return sort(t, ...)
end

-- Inserting far before the first item moves nothing, place by place, and nobody can end it.
local PLACE_MIN, INT_END = -1000, 2 ^ 31

local function safe_insert(t, ...)
  if shown[t] then error(READONLY, 0) end
  if type(t) ~= 'table' then wrong(1, 'insert', 'table', t) end
  local place = select('#', ...) > 1 and tonumber((...))
  if place and not (place >= PLACE_MIN and place < INT_END) then
    error("bad argument #2 to 'insert' (position out of bounds)", 2)
  end
  return insert(t, ...)
end

-- ---------------------------------------------------------------- errors and the end of a script

-- The errors of ``tick``, by number: no string comes from Python when there may be no memory.
local ENDS = {
  'ERR Script killed by user with SCRIPT KILL.',
  'ERR Script killed by user with FUNCTION KILL.',
  'ERR The script was ended, as the server stops.',
  'ERR internal error',
  'ERR FUNCTION LOAD timeout',
}
local dead -- the error that ends the script: pcall does not catch it
local step, looked = 0, 0 -- the step that the hooks have, and the time of the last look
local hook

local function die(message)
  dead = message
  error({ err = message }, 0)
end

function hook()
  if dead then
    if getinfo(2, 'S').source == PRELUDE then return end -- which knows that the script ends
    error({ err = dead }, 0)
  end
  local is_long = clock() - looked > LONG_S
  local number = tick()
  if number then die(ENDS[number]) end
  step = is_long and max(step / 10, STEP_MIN) or min(step * 10, STEP_MAX)
  sethook(hook, '', step)
  looked = clock()
end

-- Remove the position in this file from an error of a C function that is called here.
local function without_position(err)
  return (gsub(err, POSITION, ''))
end

-- Whether an error is an exception of Python, by an interrupt: no script may hold it.
local function is_foreign(err)
  return type(err) == 'userdata' and err ~= null
end

-- The results of a protected call, unless the script ends.
local function living(ok, ...)
  if ok then return true, ... end
  if dead then error({ err = dead }, 0) end
  local err = ...
  if is_foreign(err) then die('ERR internal error') end
  return false, type(err) == 'string' and without_position(err) or err
end

-- The same for pcall: as in Redis a caught table with an error text is that text.
local function caught(ok, ...)
  if ok then return true, ... end
  local _, err = living(false, ...)
  if type(err) == 'table' then
    local text = err.err
    if type(text) == 'string' or type(text) == 'number' then return false, text end
  end
  return false, err
end

local function safe_pcall(...)
  return caught(raw_pcall(...))
end

local function safe_xpcall(...)
  local f, handler = ...
  if select('#', ...) < 2 then error("bad argument #2 to 'xpcall' (value expected)", 2) end
  local function handle(err)
    if dead or is_foreign(err) then return err end
    return handler(type(err) == 'string' and without_position(err) or err)
  end
  return living(raw_xpcall(f, handle))
end

-- Count a start or a yield: coroutines that end or yield before their step never call the hook.
local switches = 0
local function count_switch()
  switches = switches + 1
  if switches >= SWITCHES then
    switches = 0
    hook()
  end
end

-- Every coroutine sets the hook for itself: Lua keeps hooks by coroutine.
local function hooked(f)
  return function(...)
    sethook(hook, '', step)
    count_switch()
    return f(...)
  end
end

local function safe_yield(...)
  count_switch()
  return yield(...)
end

local function safe_create(f)
  if type(f) ~= 'function' then error("bad argument #1 to 'create' (Lua function expected)", 2) end
  return create(hooked(f))
end

local function safe_wrap(f)
  if type(f) ~= 'function' then error("bad argument #1 to 'wrap' (Lua function expected)", 2) end
  return wrap(hooked(f))
end

local function safe_resume(co, ...)
  if type(co) ~= 'thread' then error("bad argument #1 to 'resume' (coroutine expected)", 2) end
  return living(resume(co, ...))
end

-- Add the position in the script to an error that ends it.
local function positioned(err)
  local level = 2
  local info = getinfo(level, 'Sl')
  while info and (info.currentline < 1 or OURS[info.source]) do
    level = level + 1
    info = getinfo(level, 'Sl')
  end
  if type(err) == 'string' and find(err, POSITION) then
    local at = info and info.short_src .. ':' .. info.currentline .. ': ' or '' -- none in a tail call
    err = at .. without_position(err)
  end
  if shown[err] then err = READONLY end -- Redis's handler of errors fails to write to it
  if type(err) ~= 'table' then err = { err = 'ERR ' .. tostring(err) } end
  if info then
    rawset(err, 'source', info.source)
    rawset(err, 'line', info.currentline)
  end
  return err
end

-- ---------------------------------------------------------------- code

-- The most parameters before '...' with which a function stays within the stack (see varargs.lua):
-- every stack has 5 places to spare, of which calls of metamethods need some.
local FIXED_MAX = 3

local environment -- the globals of scripts

local function compile(source, name, globals)
  if type(name) == 'string' then name = sub(name, 1, (find(name, '%z') or 0) - 1) end -- stays alive
  if byte(source) == 27 then source = ' ' .. source end -- not bytecode: a syntax error
  local f, message = loadstring(source, name)
  if not f then return nil, message end
  if find(source, '...', 1, true) and fixed_parameters(f) > FIXED_MAX then
    return nil, format("a function has more than %d parameters before '...'", FIXED_MAX)
  end
  return setfenv(f, globals or environment)
end

local function safe_loadstring(source, name)
  if type(source) == 'number' then source = tostring(source) end
  if type(source) ~= 'string' then wrong(1, 'loadstring', 'string', source) end
  return compile(source, name == nil and source or name)
end

local function safe_load(reader, name)
  if type(reader) ~= 'function' then wrong(1, 'load', 'function', reader) end
  local parts = {}
  local function read()
    local part = reader()
    while part ~= nil and part ~= '' do
      if type(part) ~= 'string' and type(part) ~= 'number' then error('reader function must return a string', 0) end
      parts[#parts + 1] = part
      part = reader()
    end
  end
  local ok, message = caught(raw_pcall(read))
  if not ok then return nil, message end
  return compile(concat(parts), name == nil and '=(load)' or name)
end

-- ---------------------------------------------------------------- replies of commands

-- Convert a reply of a command, encoded as RESP, to Lua; return it and where the next one begins.
local parse
local function parse_items(wire, at, count)
  local items = {}
  for place = 1, count do
    items[place], at = parse(wire, at)
  end
  return items, at
end

function parse(wire, at)
  local kind = byte(wire, at)
  local last = find(wire, '\r\n', at, true)
  local line = sub(wire, at + 1, last - 1)
  local after = last + 2
  if kind == 36 then -- $
    local size = tonumber(line)
    if size < 0 then return false, after end
    return sub(wire, after, after + size - 1), after + size + 2
  elseif kind == 58 then -- :
    return tonumber(line), after
  elseif kind == 42 then -- *
    local count = tonumber(line)
    if count < 0 then return false, after end
    return parse_items(wire, after, count)
  elseif kind == 43 then -- +
    return { ok = line }, after
  elseif kind == 45 then -- -
    return { err = line, ignore_error_stats_update = true }, after
  elseif kind == 95 then -- _
    return nil, after
  elseif kind == 35 then -- #
    return line == 't', after
  elseif kind == 44 then -- ,
    return { double = tonumber(line) }, after
  elseif kind == 40 then -- (
    return { big_number = line }, after
  elseif kind == 61 then -- =
    local size = tonumber(line)
    local text = { format = sub(wire, after, after + 2), string = sub(wire, after + 4, after + size - 1) }
    return { verbatim_string = text }, after + size + 2
  elseif kind == 126 then -- ~
    local items, members = nil, {}
    items, after = parse_items(wire, after, tonumber(line))
    for _, item in pairs(items) do members[item] = true end
    return { set = members }, after
  elseif kind == 37 then -- %
    local map, key, value = {}, nil, nil
    for _ = 1, tonumber(line) do
      key, after = parse(wire, after)
      value, after = parse(wire, after)
      if key ~= nil then map[key] = value end
    end
    return { map = map }, after
  elseif kind == 124 then -- |: attributes, which scripts do not see
    for _ = 1, 2 * tonumber(line) do
      _, after = parse(wire, after)
    end
    return parse(wire, after)
  end
  error('unknown type of reply', 0)
end

-- A number as Redis 8 writes it: an integer with all its digits, another one with the fewest
-- digits that are read as the same number, and with an exponent if there would be many zeros.
local INTEGER_MAX = 2 ^ 62

local function number_text(number)
  if number >= -INTEGER_MAX and number <= INTEGER_MAX and number == floor(number) then
    return number == 0 and '0' or format('%.0f', number)
  end
  if number - number ~= 0 then return format('%.17g', number) end -- infinite, or no number
  local text
  for count = number * number < 2 ^ -1022 and 0 or 14, 16 do -- very small numbers have few digits
    text = format('%.' .. count .. 'e', number)
    if tonumber(text) == number then break end
  end
  local sign, first, rest, exponent = match(text, '^(-?)(%d)%.?(%d-)0*e([+-]%d+)$')
  local digits = first .. rest
  exponent = tonumber(exponent)
  local zeros = exponent + 1 - #digits -- after the digits; below 0: so many digits are decimals
  if zeros >= 0 and exponent < #digits + 7 then return sign .. digits .. rep('0', zeros) end
  if zeros < 0 and (zeros > -7 or (exponent < 4 and exponent > -4)) then
    if exponent < 0 then return sign .. '0.' .. rep('0', -exponent - 1) .. digits end
    return sign .. sub(digits, 1, exponent + 1) .. '.' .. sub(digits, exponent + 2)
  end
  return sign .. first .. (rest == '' and '' or '.' .. rest) .. format('e%+d', exponent)
end

-- What Python returns beside a value: the value is no reply yet.
local ENCODED, FAILED, REFUSED, DEAD, FULL = 1, 2, 3, 4, 5

-- Run a command; its arguments must be strings or numbers.
local function invoke(...)
  local count = select('#', ...)
  if count == 2 or count == 3 then -- most calls
    local name, key, value = ...
    if type(name) == 'string' and type(key) == 'string' and (count == 2 or type(value) == 'string') then
      return command(...)
    end
  end
  if count == 0 then return 'ERR Please specify at least one argument for this redis lib call', REFUSED end
  local args = { ... }
  for place = 1, count do
    if type(args[place]) ~= 'string' then
      for index = place, count do
        local kind = type(args[index])
        if kind == 'number' then
          args[index] = number_text(args[index])
        elseif kind ~= 'string' then
          return 'ERR Lua redis lib command arguments must be strings or integers', REFUSED
        end
      end
      return command(unpack(args, 1, count))
    end
  end
  return command(...)
end

local function error_of(value, kind)
  if kind == DEAD then die(value or 'ERR internal error') end
  if kind == FULL then error('not enough memory', 0) end
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

-- ---------------------------------------------------------------- replies of scripts

local function one_line(text)
  return (text:gsub('[\r\n]', ' '))
end

local function integer(number)
  if number ~= number or number >= 2 ^ 63 or number < -2 ^ 63 then return '-9223372036854775808' end
  number = number < 0 and ceil(number) or floor(number)
  return number == 0 and '0' or format('%.0f', number)
end

-- Encode a table that a script returns as RESP; see luaReplyToRedisReply in Redis's documentation.
local function encode(result, protocol, size_max)
  local out, size = {}, 0
  local resp3 = protocol == 3
  local null = resp3 and '_\r\n' or '$-1\r\n'

  local function put(text)
    size = size + #text + 16
    if size > size_max then error('the reply is larger than the limit of replies', 0) end
    out[#out + 1] = text
  end

  local value_of
  local function pairs_of(map, mark, with_values, depth)
    put('') -- the head, when the number of items is known
    local head, count = #out, 0
    for key, value in next, shown[map] or map do
      value_of(key, depth)
      if with_values then value_of(value, depth) end
      count = count + 1
    end
    if not resp3 then mark, count = '*', with_values and 2 * count or count end
    out[head] = format('%s%d\r\n', mark, count)
  end

  local function table_of(t, depth)
    if depth > DEPTH_MAX then return put('-ERR reached lua stack limit\r\n') end
    t = shown[t] or t
    local found = rawget(t, 'err')
    if type(found) == 'string' then return put('-' .. one_line(found) .. '\r\n') end
    found = rawget(t, 'ok')
    if type(found) == 'string' then return put('+' .. one_line(found) .. '\r\n') end
    found = rawget(t, 'double')
    if type(found) == 'number' then
      local text = found == 0 and format('%.0f', found) or found == found and number_text(found) or 'nan'
      return put(resp3 and ',' .. text .. '\r\n' or format('$%d\r\n%s\r\n', #text, text))
    end
    found = rawget(t, 'map')
    if type(found) == 'table' then return pairs_of(found, '%', true, depth + 1) end
    found = rawget(t, 'set')
    if type(found) == 'table' then return pairs_of(found, '~', false, depth + 1) end
    found = rawget(t, 'big_number')
    if type(found) == 'string' then
      found = one_line(found)
      return put(resp3 and '(' .. found .. '\r\n' or '$' .. #found .. '\r\n' .. found .. '\r\n')
    end
    found = rawget(t, 'verbatim_string')
    if type(found) == 'table' then
      found = shown[found] or found
      local kind, text = rawget(found, 'format'), rawget(found, 'string')
      if type(kind) == 'string' and type(text) == 'string' then
        kind = sub(kind .. '   ', 1, 3)
        if not resp3 then return put('$' .. #text .. '\r\n' .. text .. '\r\n') end
        return put('=' .. #text + 4 .. '\r\n' .. kind .. ':' .. text .. '\r\n')
      end
    end
    put('')
    local head, count = #out, 0
    local item = rawget(t, 1)
    while item ~= nil do
      value_of(item, depth + 1)
      count = count + 1
      item = rawget(t, count + 1)
    end
    out[head] = '*' .. count .. '\r\n'
  end

  function value_of(value, depth)
    local kind = type(value)
    if kind == 'string' then
      put('$' .. #value .. '\r\n' .. value .. '\r\n')
    elseif kind == 'number' then
      put(':' .. integer(value) .. '\r\n')
    elseif kind == 'table' then
      table_of(value, depth)
    elseif kind == 'boolean' and resp == 3 then
      put(resp3 and (value and '#t\r\n' or '#f\r\n') or (value and ':1\r\n' or ':0\r\n'))
    elseif value == true then
      put(':1\r\n')
    else
      put(null)
    end
  end

  value_of(result, 1)
  return concat(out)
end

-- ---------------------------------------------------------------- the globals of scripts

math.randomseed(os.time())

local function safe_unpack(t, first, last)
  if type(t) ~= 'table' then wrong(1, 'unpack', 'table', t) end
  if first ~= nil and not tonumber(first) then wrong(2, 'unpack', 'number', first) end
  if last ~= nil and not tonumber(last) then wrong(3, 'unpack', 'number', last) end
  first, last = tonumber(first) or 1, tonumber(last) or #t
  if last < first then return end
  -- C cuts the numbers to an int: these bounds are false for NaN, too.
  if not (first >= -INT_END and last < INT_END and last - first < 8000) then
    error('too many results to unpack', 2)
  end
  return unpack(t, first, last)
end

local function safe_rep(s, count)
  if type(s) ~= 'string' and type(s) ~= 'number' then wrong(1, 'rep', 'string', s) end
  if not tonumber(count) then wrong(2, 'rep', 'number', count) end
  return s == '' and '' or rep(s, count)
end

-- Matching takes a frame of the C stack for each of these in a pattern, and crashes at its end.
local REPEATS_MAX = 2000

local function check_pattern(pattern)
  if type(pattern) == 'string' and #pattern > REPEATS_MAX then
    local _, repeats = gsub(pattern, '[?*+(-]', '')
    if repeats > REPEATS_MAX then error('pattern too complex', 3) end
  end
end

local function safe_find(...)
  local _, pattern, _, plain = ...
  if not plain then check_pattern(pattern) end
  return find(...)
end

local function safe_gmatch(...)
  check_pattern((select(2, ...)))
  return gmatch(...)
end

local function safe_gsub(...)
  check_pattern((select(2, ...)))
  return gsub(...)
end

local function safe_match(...)
  check_pattern((select(2, ...)))
  return match(...)
end

local function collectgarbage_of(raw)
  local allowed = { collect = true, count = true, step = true }
  return function(option, value)
    if option == nil or allowed[option] then return raw(option, value) end
    if option == 'stop' or option == 'restart' then return 0 end
    if option == 'setpause' or option == 'setstepmul' then return 200 end
    error(format("bad argument #1 to 'collectgarbage' (invalid option '%s')", tostring(option)), 2)
  end
end

local function copy(t, without)
  local made = {}
  for name, value in pairs(t) do made[name] = value end
  for _, name in ipairs(without or {}) do made[name] = nil end
  return made
end

local function error_reply(...)
  local text = ...
  if select('#', ...) ~= 1 or type(text) ~= 'string' then
    return { err = 'ERR wrong number or type of arguments' }
  end
  text = text:gsub('^[\r\n]+', ''):gsub('[\r\n]+$', '')
  if byte(text) ~= 45 then return { err = #text > 0 and find(text, ' ', 1, true) and text or 'ERR ' .. text } end
  text = sub(text, 2)
  return { err = find(text, ' ', 1, true) and text or 'ERR ' .. text }
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
  if count < 2 then fail('redis.log() requires two arguments or more.') end
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
  if select('#', ...) ~= 1 then fail('redis.setresp() requires one argument.') end
  local version = floor(tonumber((...)) or 0)
  if version ~= 2 and version ~= 3 then fail('RESP version must be 2 or 3.') end
  resp = version
  set_resp(version)
end

function redis.set_repl(...)
  if select('#', ...) ~= 1 then fail('redis.set_repl() requires one argument.') end
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
  if count == 0 then fail('Please specify at least one argument for this redis lib call') end
  local args = { ... }
  for place = 1, count do
    local kind = type(args[place])
    if kind == 'number' then
      args[place] = number_text(args[place])
    elseif kind ~= 'string' then
      fail('Lua redis lib command arguments must be strings or integers')
    end
  end
  local allowed = permitted(unpack(args, 1, count))
  if allowed == nil then fail('Invalid command passed to redis.acl_check_cmd()') end
  return allowed
end

local globals = {
  _VERSION = _VERSION,
  assert = assert,
  collectgarbage = collectgarbage_of(collectgarbage),
  coroutine = protect({
    create = safe_create,
    resume = safe_resume,
    running = coroutine.running,
    status = coroutine.status,
    wrap = safe_wrap,
    yield = safe_yield,
  }),
  error = error,
  gcinfo = gcinfo,
  getmetatable = safe_getmetatable,
  ipairs = ipairs,
  load = safe_load,
  loadstring = safe_loadstring,
  next = safe_next,
  pairs = safe_pairs,
  pcall = safe_pcall,
  rawequal = rawequal,
  rawget = safe_rawget,
  rawset = safe_rawset,
  redis = protect(redis),
  select = select,
  setmetatable = safe_setmetatable,
  tonumber = tonumber,
  tostring = tostring,
  type = type,
  unpack = safe_unpack,
  xpcall = safe_xpcall,
}

globals.math = protect(math)
globals.os = protect({ clock = clock })

local table_functions = copy(table)
table_functions.insert, table_functions.remove = safe_insert, safe_remove
table_functions.sort, table_functions.setn = safe_sort, safe_setn
globals.table = protect(table_functions)

-- The methods of strings are these functions too.
string.dump = nil
string.rep, string.find, string.match = safe_rep, safe_find, safe_match
string.gmatch, string.gfind, string.gsub = safe_gmatch, safe_gmatch, safe_gsub
globals.string = protect(string)
string_metatable = protect({ __index = globals.string })

for _, name in ipairs({ 'bit', 'cjson', 'cmsgpack', 'struct' }) do
  globals[name] = protect(_G[name])
end

environment = protect(globals)
globals._G = environment
metatables[environment] = protect({})
local nonexistent = {
  __index = function(_, name)
    error(format("Script attempted to access nonexistent global variable '%s'", tostring(name)), 2)
  end,
}
setmetatable(globals, nonexistent)

-- ---------------------------------------------------------------- libraries of functions

local callbacks = {} -- the functions of libraries by name
local registered -- those of the library that is being loaded, in order and by name
local loaded = {} -- those of libraries that were loaded and cannot be called yet

local FUNCTIONS_MAX = 2000 -- of a library: the Lua stack ends beyond
local FLAGS = {}
for _, flag in ipairs({ 'no-writes', 'allow-oom', 'allow-stale', 'no-cluster', 'allow-cross-slot-keys' }) do
  FLAGS[flag] = flag
end

local function string_of(value, refusal)
  local kind = type(value)
  if kind == 'number' then return tostring(value) end
  if kind ~= 'string' then fail(refusal) end
  return value
end

local function flags_of(flags)
  local found = {}
  for _, flag in ipairs(flags) do
    local known = FLAGS[type(flag) == 'string' and flag:lower() or 0]
    if not known then fail('unknown flag given') end
    found[#found + 1] = known
  end
  return concat(found, ',')
end

local function named_arguments(given)
  if type(given) ~= 'table' then
    fail('calling redis.register_function with a single argument is only applicable to Lua table '
      .. '(representing named arguments).')
  end
  local made = { description = false, flags = '' }
  for key, value in next, given do
    key = string_of(key, 'named argument key given to redis.register_function is not a string'):lower()
    if key == 'function_name' or key == 'description' then
      made[key] = string_of(value, key .. ' argument given to redis.register_function must be a string')
    elseif key == 'callback' then
      if type(value) ~= 'function' then
        fail('callback argument given to redis.register_function must be a function')
      end
      made.callback = value
    elseif key == 'flags' then
      if type(value) ~= 'table' then
        fail('flags argument to redis.register_function must be a table representing function flags')
      end
      made.flags = flags_of(value)
    else
      fail('unknown argument given to redis.register_function')
    end
  end
  if not made.function_name then fail('redis.register_function must get a function name argument') end
  if not made.callback then fail('redis.register_function must get a callback argument') end
  return made
end

local function positional_arguments(name, callback)
  name = string_of(name, 'first argument to redis.register_function must be a string')
  if type(callback) ~= 'function' then
    fail('second argument to redis.register_function must be a function')
  end
  return { function_name = name, callback = callback, description = false, flags = '' }
end

local function register_function(...)
  if not registered then
    fail('redis.register_function can only be called on FUNCTION LOAD command')
  end
  local count = select('#', ...)
  if count < 1 or count > 2 then
    fail('wrong number of arguments to redis.register_function')
  end
  local made = count == 1 and named_arguments((...)) or positional_arguments(...)
  local name = made.function_name
  if find(name, '[^%w_]') or name == '' then
    fail('Library names can only contain letters, numbers, or underscores(_) and must be at least '
      .. 'one character long')
  end
  if registered[name] then fail('Function already exists in the library') end
  registered[#registered + 1], registered[name] = made, made
end

-- While a library is loaded it sees a table redis and nothing else; its functions see the rest.
local loading_redis = setmetatable({
  register_function = register_function, log = redis.log,
  LOG_DEBUG = 0, LOG_VERBOSE = 1, LOG_NOTICE = 2, LOG_WARNING = 3,
  REDIS_VERSION = version, REDIS_VERSION_NUM = version_number,
}, nonexistent)
local loading_globals = setmetatable({ redis = protect(loading_redis) }, nonexistent)
local function_globals -- those of scripts; a copy, made when the libraries of Lua are there
local seen = { __newindex = refuse, __metatable = false }
local library_environment = setmetatable({}, seen)
metatables[library_environment] = protect({})

local function show_globals(real)
  seen.__index, shown[library_environment] = real, real
end

local function make_function_globals()
  local own_redis = copy(redis, { 'breakpoint', 'debug', 'replicate_commands' })
  function_globals = setmetatable(copy(globals), nonexistent)
  function_globals.redis, function_globals._G = protect(own_redis), library_environment
end

-- A description of each function that a library registers: its name, its text or false, flags.
local function described(functions)
  local values = {}
  for place, made in ipairs(functions) do
    values[3 * place - 2] = made.function_name
    values[3 * place - 1], values[3 * place] = made.description, made.flags
  end
  return unpack(values)
end

-- Make ready for a script. The first one sets the hook: nothing ends the start of this state.
local function prepare()
  dead, resp = nil, 2
  if step ~= STEP then
    step = STEP
    sethook(hook, '', STEP)
  end
end

-- Run the text of a library. Return true and what it registers, or the text of an error.
local function load_library(source)
  local library, message = compile(source, '@user_function', library_environment)
  if not library then return 'Error compiling function: ' .. message end
  if not function_globals then make_function_globals() end
  prepare()
  registered = {}
  show_globals(loading_globals)
  local ok, err = raw_pcall(library)
  show_globals(function_globals)
  local made = registered
  registered = nil
  if ok and #made > FUNCTIONS_MAX then ok, err = false, 'too many functions' end
  if not ok then
    local text = type(err) == 'table' and rawget(err, 'err') or 'ERR ' .. tostring(err)
    return 'Error registering functions: ' .. tostring(text)
  end
  loaded[#loaded + 1] = made
  return true, described(made)
end

-- Forget the libraries that were loaded since the last call, or make their functions callable.
local function end_loading(keep)
  local libraries = loaded
  loaded = {}
  if not keep then return end
  for _, made in ipairs(libraries) do
    for _, each in ipairs(made) do callbacks[each.function_name] = each.callback end
  end
end

-- ---------------------------------------------------------------- what Python calls

local functions = {} -- compiled scripts

local function load(key, source, name)
  prepare()
  local f, message = compile(source, name)
  functions[key] = f
  return message
end

local function forget(key)
  functions[key], callbacks[key] = nil, nil
end

local fed = {}
local function feed(...)
  for place = 1, select('#', ...) do
    fed[#fed + 1] = (select(place, ...))
  end
end

local function failure(err)
  if type(err) ~= 'table' then return 'ERR ' .. tostring(err), FAILED end
  local text = rawget(err, 'err')
  if type(text) ~= 'string' then text = 'ERR unknown error' end
  local source, line = rawget(err, 'source'), rawget(err, 'line')
  local at = type(source) == 'string' and type(line) == 'number' and source .. ':' .. line or nil
  return text, FAILED, rawget(err, 'ignore_error_stats_update') == true, at
end

local function finished(ok, result, protocol, size_max)
  if not ok then return failure(result) end
  local kind = type(result)
  if kind == 'table' then
    local text = rawget(shown[result] or result, 'err')
    if type(text) == 'string' then
      return text, FAILED, rawget(result, 'ignore_error_stats_update') == true
    end
    local encoded, wire = raw_pcall(encode, result, protocol, size_max)
    if not encoded then return failure(wire) end
    return wire, ENCODED
  end
  if kind == 'string' or kind == 'number' or kind == 'boolean' then return result end
  return nil
end

-- Call a function of a library, or run a script; the first ``count`` of the other arguments are keys.
local function run(key, protocol, size_max, count, ...)
  prepare()
  local keys, args = { ... }, {}
  if #fed > 0 then keys, fed = fed, {} end
  for place = count + 1, #keys do
    args[place - count], keys[place] = keys[place], nil
  end
  local callback, ok, result = callbacks[key], nil, nil
  if callback then
    ok, result = raw_xpcall(function() return (callback(keys, args)) end, positioned)
  else
    globals.KEYS, globals.ARGV = keys, args
    ok, result = raw_xpcall(functions[key], positioned)
    globals.KEYS, globals.ARGV = nil, nil
  end
  return finished(ok, result, protocol, size_max)
end

local all = _G
for name in pairs(all) do all[name] = nil end
return load, forget, feed, run, load_library, end_loading
