-- The sandbox of scripts. It is loaded first into a new Lua state, takes everything that a script
-- may not have out of reach, and returns the functions that Python calls.
--
-- Python functions are upvalues of functions here and in calls.lua, and nowhere else. They get and
-- return strings, numbers, booleans and nil, and never raise. PUC Lua 5.1 has no read-only tables: a
-- script sees an empty proxy of each shared table, and every function that reads or writes tables raw
-- knows them (tables.lua).
--
-- The other files of the sandbox come as functions, which are chunks of the same name as this one.
-- What calls.lua gets from Python comes last.

local load_tables, load_replies, load_calls, load_libraries, tick = ...

-- Instructions of one coroutine between two looks at the clock: at first, and later, where fewer
-- are taken if they take long.
local STEP, STEP_MIN, STEP_MAX = 1000, 100, 10000
local LONG_S = 0.01
local SWITCHES = 100 -- starts and yields of coroutines between two looks at the clock

local assert, error, type, tostring, tonumber, select, unpack, rawequal, ipairs =
  assert, error, type, tostring, tonumber, select, unpack, rawequal, ipairs
local pairs, rawget, rawset, setmetatable = pairs, rawget, rawset, setmetatable
local raw_pcall, raw_xpcall, loadstring, setfenv = pcall, xpcall, loadstring, setfenv
local sethook, getinfo, clock = debug.sethook, debug.getinfo, os.clock
local null = cjson.null
local byte, find, format, rep, sub = string.byte, string.find, string.format, string.rep, string.sub
local gmatch, gsub, match = string.gmatch, string.gsub, string.match
local max, min, concat = math.max, math.min, table.concat
local create, resume, yield = coroutine.create, coroutine.resume, coroutine.yield
local fixed_parameters = varargs

local tables = load_tables()
local shown, protect, wrong = tables.shown, tables.protect, tables.wrong
local replies = load_replies(shown)
local encode = replies.encode
local state = { resp = 2 } -- resp: the protocol in which the script gets replies

local PRELUDE = getinfo(1, 'S').source
local POSITION = '^%[string "sandbox"%]:%d+: '
local OURS = { [PRELUDE] = true } -- chunks in which no error of a script stands
for _, name in ipairs({ 'arguments', 'ieee754', 'bit', 'cjson', 'cmsgpack', 'struct' }) do
  OURS['=' .. name] = true
end

-- ---------------------------------------------------------------- errors and the end of a script

-- The errors of ``tick``, by number: no string comes from Python when there may be no memory.
local ENDS = {
  'ERR Script killed by user with SCRIPT KILL...', -- of functions, too, as in Redis
  'ERR The script was ended, as the server stops.',
  'ERR internal error',
  'ERR FUNCTION LOAD timeout',
}
local dead -- the error that ends the script: pcall does not catch it
local interrupt -- an exception of Python that ends the script; Python raises it again
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

-- Whether an error is an exception of Python, by an interrupt. It is noted, and no script may hold it.
local function is_foreign(err)
  local found = type(err) == 'userdata' and err ~= null
  if found then interrupt = err end
  return found
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
  if select('#', ...) == 0 then return false, 'attempt to call a boolean value' end
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

-- The results of a resumed coroutine. The stack of one that has failed is still there: it has the
-- position in the script that an error of a C function lacks.
local function resumed(co, ok, ...)
  if ok then return true, ... end
  local err = ...
  if type(err) ~= 'string' or not find(err, POSITION) then return false, err end
  local level, info = 0, getinfo(co, 0, 'Sl')
  while info and (info.currentline < 1 or OURS[info.source]) do
    level = level + 1
    info = getinfo(co, level, 'Sl')
  end
  local at = info and info.short_src .. ':' .. info.currentline .. ': ' or ''
  return false, at .. without_position(err)
end

local function unwrapped(ok, ...)
  if ok then return ... end
  error((...), 3) -- with the position of the caller, as in C
end

local function safe_wrap(f)
  if type(f) ~= 'function' then error("bad argument #1 to 'wrap' (Lua function expected)", 2) end
  local co = create(hooked(f))
  return function(...) return unwrapped(resumed(co, resume(co, ...))) end
end

local function safe_resume(co, ...)
  if type(co) ~= 'thread' then error("bad argument #1 to 'resume' (coroutine expected)", 2) end
  return living(resumed(co, resume(co, ...)))
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
  if is_foreign(err) then return err end
  if shown[err] then err = tables.READONLY end -- Redis's handler of errors fails to write to it
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

-- ---------------------------------------------------------------- the globals of scripts

math.randomseed(os.time())

local function safe_unpack(t, first, last)
  if type(t) ~= 'table' then wrong(1, 'unpack', 'table', t) end
  if first ~= nil and not tonumber(first) then wrong(2, 'unpack', 'number', first) end
  if last ~= nil and not tonumber(last) then wrong(3, 'unpack', 'number', last) end
  first, last = tonumber(first) or 1, tonumber(last) or #t
  if last < first then return end
  -- C cuts the numbers to an int: these bounds are false for NaN, too.
  if not (first >= -tables.INT_END and last < tables.INT_END and last - first < 8000) then
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

-- Make ready for a script. The first one sets the hook: nothing ends the start of this state.
local function prepare()
  dead, state.resp = nil, 2
  if step ~= STEP then
    step = STEP
    sethook(hook, '', STEP)
  end
end

-- Valkey's name of the table redis is server; there they are one table, so they are equal here.
local redis, fail = load_calls('redis', replies, state, die, select(6, ...))
local server = load_calls('server', replies, state, die, select(6, ...))
local function are_equal() return true end

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
  getmetatable = tables.getmetatable,
  ipairs = ipairs,
  load = safe_load,
  loadstring = safe_loadstring,
  next = tables.next,
  pairs = tables.pairs,
  pcall = safe_pcall,
  rawequal = rawequal,
  rawget = tables.rawget,
  rawset = tables.rawset,
  redis = protect(redis, are_equal),
  select = select,
  server = protect(server, are_equal),
  setmetatable = tables.setmetatable,
  tonumber = tonumber,
  tostring = tostring,
  type = type,
  unpack = safe_unpack,
  xpcall = safe_xpcall,
}

globals.math = protect(math)
globals.os = protect({ clock = clock })

local table_functions = copy(table)
table_functions.insert, table_functions.remove = tables.insert, tables.remove
table_functions.sort, table_functions.setn = tables.sort, tables.setn
globals.table = protect(table_functions)

-- The methods of strings are these functions too.
string.dump = nil
string.rep, string.find, string.match = safe_rep, safe_find, safe_match
string.gmatch, string.gfind, string.gsub = safe_gmatch, safe_gmatch, safe_gsub
globals.string = protect(string)
tables.string_metatable = protect({ __index = globals.string })

for _, name in ipairs({ 'bit', 'cjson', 'cmsgpack', 'struct' }) do
  globals[name] = protect(_G[name])
end

tables.protect_metatable(json_list)

environment = protect(globals)
globals._G = environment
tables.metatables[environment] = protect({})
local nonexistent = {
  __index = function(_, name)
    error(format("Script attempted to access nonexistent global variable '%s'", tostring(name)), 2)
  end,
}
setmetatable(globals, nonexistent)

local load_library, end_loading, imitate, callbacks =
  load_libraries(tables, redis, server, are_equal, fail, globals, nonexistent, copy, compile, prepare)

-- ---------------------------------------------------------------- what Python calls

local functions = {} -- compiled scripts
local ENCODED, FAILED = 1, 2 -- beside a result of a script: it is encoded, or an error

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
  if is_foreign(err) then return end
  if type(err) ~= 'table' then return 'ERR ' .. tostring(err), FAILED end
  local text = rawget(err, 'err')
  if type(text) == 'number' then text = tostring(text) end
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
    local encoded, wire = raw_pcall(encode, result, protocol, state.resp, size_max)
    if not encoded then return failure(wire) end
    return wire, ENCODED
  end
  if kind == 'string' or kind == 'number' or kind == 'boolean' then return result end
  return nil
end

local function unless_interrupted(...)
  if not interrupt then return ... end
  local exception = interrupt
  interrupt = nil
  return exception
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
  return unless_interrupted(finished(ok, result, protocol, size_max))
end

local all = _G
for name in pairs(all) do all[name] = nil end
return load, forget, feed, run, load_library, end_loading, imitate
