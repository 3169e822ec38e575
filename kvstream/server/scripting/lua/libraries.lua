-- Libraries of functions: what they see and register while they are loaded.
local tables, redis, server, are_equal, raise, globals, nonexistent, copy, compile, prepare = ...
local protect, shown, metatables = tables.protect, tables.shown, tables.metatables
local getmetatable, ipairs, next, pcall, rawget, setmetatable, tostring, type, unpack =
  getmetatable, ipairs, next, pcall, rawget, setmetatable, tostring, type, unpack
local find, gsub, concat, select = string.find, string.gsub, table.concat, select

local callbacks = {} -- the functions of libraries by name
local registered -- those of the library that is being loaded, in order and by name
local loaded = {} -- those of libraries that were loaded and cannot be called yet

local FUNCTIONS_MAX = 2000 -- of a library: the Lua stack ends beyond
local FLAGS = {}
for _, flag in ipairs({ 'no-writes', 'allow-oom', 'allow-stale', 'no-cluster', 'allow-cross-slot-keys' }) do
  FLAGS[flag] = flag
end

local called -- the name of the table of which register_function is called

local function fail(message)
  raise((gsub(message, 'redis%.', called .. '.')))
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

local function register(...)
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
local function loading(name, table_of_scripts)
  local function register_function(...)
    called = name
    register(...)
  end
  local seen = setmetatable({
    register_function = register_function, log = table_of_scripts.log,
    LOG_DEBUG = 0, LOG_VERBOSE = 1, LOG_NOTICE = 2, LOG_WARNING = 3,
    REDIS_VERSION = redis.REDIS_VERSION, REDIS_VERSION_NUM = redis.REDIS_VERSION_NUM,
    SERVER_NAME = redis.SERVER_NAME,
  }, nonexistent)
  return protect(seen, are_equal), seen
end
local redis_shown, redis_seen = loading('redis', redis)
local server_shown, server_seen = loading('server', server)
local loading_globals = setmetatable({ redis = redis_shown, server = server_shown }, nonexistent)

-- Show libraries, while they are loaded, what Valkey of a version has; without one, what Redis has.
local function imitate(valkey_version, valkey_version_number)
  if not valkey_version then loading_globals.server = nil end
  for _, seen in ipairs({ redis_seen, server_seen }) do
    seen.SERVER_NAME = valkey_version and 'valkey'
    seen.VALKEY_VERSION, seen.VALKEY_VERSION_NUM = valkey_version, valkey_version_number
  end
end

local function_globals -- those of scripts; a copy, made when the libraries of Lua are there
local seen = { __newindex = tables.refuse, __metatable = false }
local library_environment = setmetatable({}, seen)
metatables[library_environment] = protect({})

local function show_globals(real)
  seen.__index, shown[library_environment] = real, real
end

local function of_functions(table_of_scripts)
  local own = copy(table_of_scripts, { 'breakpoint', 'debug', 'replicate_commands' })
  return protect(setmetatable(own, getmetatable(table_of_scripts)), are_equal)
end

local function make_function_globals()
  function_globals = setmetatable(copy(globals), nonexistent)
  function_globals.redis, function_globals.server = of_functions(redis), of_functions(server)
  function_globals._G = library_environment
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

-- Run the text of a library. Return true and what it registers, or the text of an error.
local function load_library(source)
  local library, message = compile(source, '@user_function', library_environment)
  if not library then return 'Error compiling function: ' .. message end
  if not function_globals then make_function_globals() end
  prepare()
  registered = {}
  show_globals(loading_globals)
  local ok, err = pcall(library)
  show_globals(function_globals)
  local made = registered
  registered = nil
  if type(err) == 'userdata' then return err end -- an exception of Python, by an interrupt
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

return load_library, end_loading, imitate, callbacks
