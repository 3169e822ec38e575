-- JSON, as the library cjson of Redis's scripts.
local G, arguments = ...
local byte, char, find, format = G.string.byte, G.string.char, G.string.find, G.string.format
local gsub, lower, match, sub = G.string.gsub, G.string.lower, G.string.match, G.string.sub
local concat, error, floor, huge = G.table.concat, G.error, G.math.floor, G.math.huge
local getmetatable, newproxy, next, rawget = G.debug.getmetatable, G.newproxy, G.next, G.rawget
local select, setmetatable, tonumber, tostring, type =
  G.select, G.setmetatable, G.tonumber, G.tostring, G.type

local INT_MAX = 2 ^ 31 - 1
local MAX_STACK = 8000 -- of values in a C function of Lua: it bounds the nesting, too

-- C code would have the light userdata NULL, which Lua code cannot make.
local null = newproxy(true)
getmetatable(null).__tostring = function()
  return "userdata: (nil)"
end
getmetatable(null).__metatable = false

-- The metatable of decoded lists, if it is wanted: they stay lists when they are empty. The sandbox
-- takes the global away, and shows scripts a read-only proxy of the table.
local json_list = { __is_cjson_array = true }
G.json_list = json_list

local ESCAPES = {
  ['"'] = '\\"', ["\\"] = "\\\\", ["/"] = "\\/", ["\b"] = "\\b",
  ["\t"] = "\\t", ["\n"] = "\\n", ["\f"] = "\\f", ["\r"] = "\\r",
}
for code = 0, 31 do
  local character = char(code)
  ESCAPES[character] = ESCAPES[character] or format("\\u%04x", code)
end
ESCAPES["\127"] = "\\u007f"

local function quote(text)
  if find(text, '[%z\1-\31"\\/\127]') then
    text = gsub(text, '[%z\1-\31"\\/\127]', ESCAPES)
  end
  return '"' .. text .. '"'
end

-- Return the largest index of a table of indexes, -1 for an object, or nil and an error.
local function list_length(value, config)
  local largest, count = 0, 0
  for key in next, value do
    if type(key) ~= "number" or key < 1 or floor(key) ~= key then
      return -1
    end
    if key > largest then
      largest = key > INT_MAX and -2 ^ 31 or key -- as C casts it to an int
    end
    count = count + 1
  end
  local ratio = config.sparse_ratio
  if ratio > 0 and largest > count * ratio and largest > config.sparse_safe then
    if not config.sparse_convert then
      return nil, "Cannot serialise table: excessively sparse array"
    end
    return -1
  end
  return largest
end

local function encode_number(number, config)
  if number ~= number or number == huge or number == -huge then
    if config.encode_invalid == 0 then
      return nil, "Cannot serialise number: must not be NaN or Inf"
    elseif config.encode_invalid == 2 then
      return "null"
    elseif number ~= number then
      return "nan"
    end
  end
  return format(config.number_format, number)
end

-- Append the text of a value to the parts of a text: their number, or nil and an error.
local append

local function append_list(parts, used, value, length, config, depth, stack)
  if length == 0 then
    parts[used + 1] = "[]"
    return used + 1
  end
  local problem
  for index = 1, length do
    parts[used + 1] = index == 1 and "[" or ","
    used, problem = append(parts, used + 1, rawget(value, index), config, depth, stack + 1)
    if not used then
      return nil, problem
    end
  end
  parts[used + 1] = "]"
  return used + 1
end

local function append_object(parts, used, value, config, depth, stack)
  local before, problem = "{"
  for key, item in next, value do
    local kind, name = type(key), nil
    if kind == "string" then
      name = quote(key)
    elseif kind == "number" then
      name, problem = encode_number(key, config)
      if not name then
        return nil, problem
      end
      name = '"' .. name .. '"'
    else
      return nil, "Cannot serialise " .. kind .. ": table key must be a number or string"
    end
    parts[used + 1], parts[used + 2], parts[used + 3] = before, name, ":"
    used, problem = append(parts, used + 3, item, config, depth, stack + 2)
    if not used then
      return nil, problem
    end
    before = ","
  end
  parts[used + 1] = before == "{" and "{}" or "}"
  return used + 1
end

function append(parts, used, value, config, depth, stack)
  local kind = type(value)
  local text, problem
  if kind == "string" then
    text = quote(value)
  elseif kind == "number" then
    text, problem = encode_number(value, config)
  elseif kind == "table" then
    depth = depth + 1
    if depth > config.encode_max_depth or stack + 3 > MAX_STACK then
      return nil, format("Cannot serialise, excessive nesting (%d)", depth)
    end
    local metatable, length = getmetatable(value), nil
    if metatable and metatable.__is_cjson_array then
      return append_list(parts, used, value, #value, config, depth, stack)
    end
    length, problem = list_length(value, config)
    if not length then
      return nil, problem
    elseif length > 0 then
      return append_list(parts, used, value, length, config, depth, stack)
    end
    return append_object(parts, used, value, config, depth, stack)
  elseif value == nil or value == null then
    text = "null"
  elseif kind == "boolean" then
    text = value and "true" or "false"
  else
    problem = "Cannot serialise " .. kind .. ": type not supported"
  end
  if problem then
    return nil, problem
  end
  parts[used + 1] = text
  return used + 1
end

local UNESCAPED = {}
for escaped, plain in next, { b = "\b", f = "\f", n = "\n", r = "\r", t = "\t" } do
  UNESCAPED[byte(escaped)] = plain
end
for _, code in next, { byte('"\\/', 1, 3) } do
  UNESCAPED[code] = char(code)
end

local function utf8(code)
  if code < 0x80 then
    return char(code)
  elseif code < 0x800 then
    return char(0xc0 + floor(code / 64), 0x80 + code % 64)
  elseif code < 0x10000 then
    return char(0xe0 + floor(code / 4096), 0x80 + floor(code / 64) % 64, 0x80 + code % 64)
  end
  return char(
    0xf0 + floor(code / 262144), 0x80 + floor(code / 4096) % 64,
    0x80 + floor(code / 64) % 64, 0x80 + code % 64
  )
end

-- Decode \uXXXX, or a pair of surrogates: UTF-8 and the position behind, or nil.
local function unicode_escape(text, position)
  local digits = match(text, "^%x%x%x%x", position + 2)
  if not digits then
    return nil
  end
  local code = tonumber(digits, 16)
  if code < 0xd800 or code > 0xdfff then
    return utf8(code), position + 6
  end
  local low = match(text, "^\\u([dD][c-fC-F]%x%x)", position + 6)
  if code >= 0xdc00 or not low then
    return nil
  end
  return utf8((code - 0xd800) * 1024 + tonumber(low, 16) - 0xdc00 + 0x10000), position + 12
end

-- The readers of tokens return a token's name, its value, the position behind it and its own
-- position; for an error nil, a text, nil and the position of the error. NUL ends a text.

local function read_string(text, start)
  local from = start + 1
  local at = find(text, '["\\%z]', from)
  if at and byte(text, at) == 34 then
    return "T_STRING", sub(text, from, at - 1), at + 1, start
  end
  local parts, used = {}, 0
  while at and byte(text, at) == 92 do
    local escape = byte(text, at + 1)
    local plain, after = UNESCAPED[escape], at + 2
    if escape == 117 then
      plain, after = unicode_escape(text, at)
    end
    if not plain then
      return nil, escape == 117 and "invalid unicode escape code" or "invalid escape code", nil, at
    end
    parts[used + 1], parts[used + 2] = sub(text, from, at - 1), plain
    used, from = used + 2, after
    at = find(text, '["\\%z]', from)
  end
  if not at or byte(text, at) ~= 34 then
    return nil, "unexpected end of string", nil, at or #text + 1
  end
  parts[used + 1] = sub(text, from, at - 1)
  return "T_STRING", concat(parts), at + 1, start
end

-- Return the longest prefix that strtod() reads: its text, or nil.
local function number_prefix(text, start)
  local sign = match(text, "^[-+]?", start)
  local from = start + #sign
  local digits = match(text, "^0[xX]%x+%.?%x*", from) or match(text, "^0[xX]%.%x+", from)
  if digits then
    return sign .. digits .. (match(text, "^[pP][-+]?%d+", from + #digits) or "")
  end
  digits = match(text, "^%d+%.?%d*", from) or match(text, "^%.%d+", from)
  if digits then
    return sign .. digits .. (match(text, "^[eE][-+]?%d+", from + #digits) or "")
  end
  local word = lower(sub(text, from, from + 7))
  if word == "infinity" then
    return sub(text, start, from + 7)
  elseif sub(word, 1, 3) == "nan" then
    return sub(text, start, from + 2) .. (match(text, "^%([%w_]*%)", from + 3) or "")
  elseif sub(word, 1, 3) == "inf" then
    return sub(text, start, from + 2)
  end
  return nil
end

local function read_number(text, start)
  local from, last = find(text, "^-?%d+%.?%d*[eE]?[-+]?%d*", start)
  local number = from and not find(text, "^[xX]", last + 1) and tonumber(sub(text, start, last))
  if number then
    return "T_NUMBER", number, last + 1, start
  end
  local prefix = number_prefix(text, start)
  if not prefix then
    return nil, "invalid number", nil, start
  end
  return "T_NUMBER", tonumber((gsub(prefix, "%(.*", ""))), start + #prefix, start
end

-- Say whether a number is one that strtod() reads and JSON does not have.
local function is_invalid_number(text, start)
  if find(text, "^%+", start) then
    return true
  elseif find(text, "^-", start) then
    start = start + 1
  end
  if find(text, "^0[xX%d]", start) then
    return true
  end
  local word = lower(sub(text, start, start + 2))
  return word == "inf" or word == "nan"
end

local PUNCTUATION = {
  [0] = "T_END",
  [byte("{")] = "T_OBJ_BEGIN",
  [byte("}")] = "T_OBJ_END",
  [byte("[")] = "T_ARR_BEGIN",
  [byte("]")] = "T_ARR_END",
  [byte(",")] = "T_COMMA",
  [byte(":")] = "T_COLON",
}

local function read_token(text, start, config)
  local code = byte(text, start)
  if code == 32 or code == 10 or code == 13 or code == 9 then
    start = find(text, "[^ \t\r\n]", start) or #text + 1
    code = byte(text, start)
  end
  if code == 34 then
    return read_string(text, start)
  end
  local name = PUNCTUATION[code or 0]
  if name then
    return name, nil, start + 1, start
  elseif code == 45 or code >= 48 and code <= 57 then
    if not config.decode_invalid and is_invalid_number(text, start) then
      return nil, "invalid number", nil, start
    end
    return read_number(text, start)
  elseif find(text, "^true", start) then
    return "T_BOOLEAN", true, start + 4, start
  elseif find(text, "^false", start) then
    return "T_BOOLEAN", false, start + 5, start
  elseif find(text, "^null", start) then
    return "T_NULL", null, start + 4, start
  elseif config.decode_invalid and is_invalid_number(text, start) then
    return read_number(text, start)
  end
  return nil, "invalid token", nil, start
end

local function expected(wanted, name, value, start)
  return nil, format("Expected %s but found %s at character %d", wanted, name or value, start)
end

-- Decode the value of a token: the value and the position behind it, or nil and an error.
local decode

local function decode_object(text, position, config, depth, stack)
  local object = {}
  local name, key, after, start = read_token(text, position, config)
  if name == "T_OBJ_END" then
    return object, after
  end
  while true do
    if name ~= "T_STRING" then
      return expected("object key string", name, key, start)
    end
    local value
    name, value, after, start = read_token(text, after, config)
    if name ~= "T_COLON" then
      return expected("colon", name, value, start)
    end
    name, value, after, start = read_token(text, after, config)
    value, after = decode(text, config, depth, stack + 2, name, value, after, start)
    if value == nil then
      return nil, after
    end
    object[key] = value
    name, value, after, start = read_token(text, after, config)
    if name == "T_OBJ_END" then
      return object, after
    elseif name ~= "T_COMMA" then
      return expected("comma or object end", name, value, start)
    end
    name, key, after, start = read_token(text, after, config)
  end
end

local function decode_list(text, position, config, depth, stack)
  local list, used = {}, 0
  if config.decode_marked then
    setmetatable(list, json_list)
  end
  local name, value, after, start = read_token(text, position, config)
  if name == "T_ARR_END" then
    return list, after
  end
  while true do
    value, after = decode(text, config, depth, stack + 1, name, value, after, start)
    if value == nil then
      return nil, after
    end
    used = used + 1
    list[used] = value
    name, value, after, start = read_token(text, after, config)
    if name == "T_ARR_END" then
      return list, after
    elseif name ~= "T_COMMA" then
      return expected("comma or array end", name, value, start)
    end
    name, value, after, start = read_token(text, after, config)
  end
end

function decode(text, config, depth, stack, name, value, after, start)
  if name == "T_STRING" or name == "T_NUMBER" or name == "T_BOOLEAN" or name == "T_NULL" then
    return value, after
  elseif name ~= "T_OBJ_BEGIN" and name ~= "T_ARR_BEGIN" then
    return expected("value", name, value, start)
  end
  local read, slots = decode_list, 2
  if name == "T_OBJ_BEGIN" then
    read, slots = decode_object, 3
  end
  depth = depth + 1
  if depth > config.decode_max_depth or stack + slots > MAX_STACK then
    local problem = "Found too many nested data structures (%d) at character %d"
    return nil, format(problem, depth, start)
  end
  return read(text, after, config, depth, stack)
end

-- Check the number of arguments of a function of settings, and return them and their number.
local function settings_arguments(most, ...)
  local count = select("#", ...)
  if count > most then
    arguments.bad_argument(most + 1, "found too many arguments", 1)
  end
  return count, ...
end

-- Set an integer, unless the argument is nil, and return what it is then.
local function set_integer(config, name, value, position, count, least, most)
  if value ~= nil then
    value = arguments.int32(arguments.integer(value, position, count, 1))
    if value < least or value > most then
      local range = format("expected integer between %d and %d", least, most)
      arguments.bad_argument(1, range, 1)
    end
    config[name] = value
  end
  return config[name]
end

-- Return the number of an option, which is a boolean or one of the names, starting at 0.
local function choose(names, value, position, count)
  if type(value) == "boolean" then
    return value and 1 or 0
  end
  value = arguments.string(value, position, count, 1)
  for index = 1, #names do
    if names[index] == value then
      return index - 1
    end
  end
  arguments.bad_argument(position, "invalid option '" .. match(value, "^%Z*") .. "'", 1)
end

local BOOLEANS = { "off", "on" }

local function new_module()
  local config = {
    decode_invalid = true,
    decode_marked = false, -- lists get the metatable of lists
    decode_max_depth = 1000,
    encode_invalid = 0, -- 1: as the printed number, 2: as null
    encode_max_depth = 1000,
    keep_buffer = true, -- has no effect here
    number_format = "%.14g",
    number_precision = 14,
    sparse_convert = false,
    sparse_ratio = 2,
    sparse_safe = 10,
  }
  local cjson = { _NAME = "cjson", _VERSION = "2.1.0", null = null }

  function cjson.new()
    return new_module()
  end

  function cjson.encode(...)
    if select("#", ...) ~= 1 then
      arguments.bad_argument(1, "expected 1 argument", 0)
    end
    local parts = {}
    local used, problem = append(parts, 0, (...), config, 0, 1)
    if not used then
      error(problem, 2)
    end
    return concat(parts)
  end

  function cjson.decode(...)
    local count = select("#", ...)
    if count ~= 1 then
      arguments.bad_argument(1, "expected 1 argument", 0)
    end
    local text = arguments.string((...), 1, count, 0)
    if #text >= 2 and (byte(text, 1) == 0 or byte(text, 2) == 0) then
      error("JSON parser does not support UTF-16 or UTF-32", 2)
    end
    local name, token, after, start = read_token(text, 1, config)
    local value
    value, after = decode(text, config, 0, 1, name, token, after, start)
    if value == nil then
      error(after, 2)
    end
    name, token, after, start = read_token(text, after, config)
    if name ~= "T_END" then
      local _, problem = expected("the end", name, token, start)
      error(problem, 2)
    end
    return value
  end

  function cjson.encode_sparse_array(...)
    local count, convert, ratio, safe = settings_arguments(3, ...)
    if convert ~= nil then
      config.sparse_convert = choose(BOOLEANS, convert, 1, count) == 1
    end
    ratio = set_integer(config, "sparse_ratio", ratio, 2, count, 0, INT_MAX)
    safe = set_integer(config, "sparse_safe", safe, 3, count, 0, INT_MAX)
    return config.sparse_convert, ratio, safe
  end

  function cjson.encode_max_depth(...)
    local count, depth = settings_arguments(1, ...)
    depth = set_integer(config, "encode_max_depth", depth, 1, count, 1, INT_MAX)
    return depth
  end

  function cjson.decode_max_depth(...)
    local count, depth = settings_arguments(1, ...)
    depth = set_integer(config, "decode_max_depth", depth, 1, count, 1, INT_MAX)
    return depth
  end

  function cjson.encode_number_precision(...)
    local count, digits = settings_arguments(1, ...)
    digits = set_integer(config, "number_precision", digits, 1, count, 1, 14)
    config.number_format = "%." .. tostring(digits) .. "g"
    return digits
  end

  function cjson.decode_array_with_array_mt(...)
    local count, choice = settings_arguments(1, ...)
    if choice ~= nil then
      config.decode_marked = choose(BOOLEANS, choice, 1, count) == 1
    end
    return config.decode_marked
  end

  function cjson.encode_keep_buffer(...)
    local count, keep = settings_arguments(1, ...)
    if keep ~= nil then
      config.keep_buffer = choose(BOOLEANS, keep, 1, count) == 1
    end
    return config.keep_buffer
  end

  function cjson.encode_invalid_numbers(...)
    local count, choice = settings_arguments(1, ...)
    if choice ~= nil then
      config.encode_invalid = choose({ "off", "on", "null" }, choice, 1, count)
    end
    return config.encode_invalid == 2 and "null" or config.encode_invalid == 1
  end

  function cjson.decode_invalid_numbers(...)
    local count, choice = settings_arguments(1, ...)
    if choice ~= nil then
      config.decode_invalid = choose(BOOLEANS, choice, 1, count) == 1
    end
    return config.decode_invalid
  end

  return cjson
end

return new_module()
