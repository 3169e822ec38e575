-- MessagePack, as the library cmsgpack of Redis's scripts.
local G, arguments, ieee754 = ...
local byte, char, format, sub = G.string.byte, G.string.char, G.string.format, G.string.sub
local concat, error, floor, next = G.table.concat, G.error, G.math.floor, G.next
local select, tostring, type, unpack = G.select, G.tostring, G.type, G.unpack
local encode_double, encode_float = ieee754.encode_double, ieee754.encode_float
local decode_double, decode_float = ieee754.decode_double, ieee754.decode_float

local cmsgpack = {
  _NAME = "cmsgpack",
  _VERSION = "lua-cmsgpack 0.4.0",
  _COPYRIGHT = "Copyright (C) 2012, Salvatore Sanfilippo",
  _DESCRIPTION = "MessagePack C implementation for Lua",
}

local MAX_NESTING = 16 -- of packed tables; deeper ones become nil
local MAX_STACK = 8000 -- of values in a C function of Lua: it bounds the nesting of input
local MAX_RESULTS = MAX_STACK - 3 -- which unpack() can return

-- Return a big-endian number behind a byte. string.char cuts fractions off.
local function uint8(tag, number)
  return char(tag, number)
end

local function uint16(tag, number)
  return char(tag, number / 256, number % 256)
end

local function uint32(tag, number)
  return char(tag, number / 16777216, number / 65536 % 256, number / 256 % 256, number % 256)
end

-- Return an integer of 64 bits in two's complement behind a byte.
local function int64(tag, number)
  local low = number % 2 ^ 32
  local high = (number - low) / 2 ^ 32 % 2 ^ 32
  return uint32(tag, high) .. sub(uint32(0, low), 2)
end

local function encode_integer(number)
  if number >= 0 then
    if number <= 127 then
      return char(number)
    elseif number < 2 ^ 8 then
      return uint8(0xcc, number)
    elseif number < 2 ^ 16 then
      return uint16(0xcd, number)
    elseif number < 2 ^ 32 then
      return uint32(0xce, number)
    end
    return int64(0xcf, number)
  elseif number >= -32 then
    return char(number + 256)
  elseif number >= -2 ^ 7 then
    return uint8(0xd0, number + 2 ^ 8)
  elseif number >= -2 ^ 15 then
    return uint16(0xd1, number + 2 ^ 16)
  elseif number >= -2 ^ 31 then
    return uint32(0xd2, number + 2 ^ 32)
  end
  return int64(0xd3, number)
end

local function encode_number(number)
  if number == floor(number) and number >= -2 ^ 63 and number < 2 ^ 63 then
    return encode_integer(number)
  end
  local float = encode_float(number)
  if decode_float(float, 1) == number then
    return "\202" .. float
  end
  return "\203" .. encode_double(number)
end

local function encode_string(text)
  local length = #text
  if length < 32 then
    return char(0xa0 + length) .. text
  elseif length < 2 ^ 8 then
    return uint8(0xd9, length) .. text
  elseif length < 2 ^ 16 then
    return uint16(0xda, length) .. text
  end
  return uint32(0xdb, length) .. text
end

-- Return the header of a list or a map of a length.
local function header(length, small, large)
  if length < 16 then
    return char(small + length)
  elseif length < 2 ^ 16 then
    return uint16(large, length)
  end
  return uint32(large + 1, length)
end

-- Count the keys of a table, and say whether they are 1 to that count.
local function measure(value)
  local count, largest, is_list = 0, 0, true
  for key in next, value do
    count = count + 1
    if is_list then
      if type(key) ~= "number" or key <= 0 or key ~= floor(key) or key >= 2 ^ 31 then
        is_list = false
      elseif key > largest then
        largest = key
      end
    end
  end
  return count, is_list and count == largest
end

local encode

local function encode_table(value, level)
  local count, is_list = measure(value)
  local parts = {}
  if is_list then
    parts[1] = header(count, 0x90, 0xdc)
    for index = 1, count do
      parts[index + 1] = encode(value[index], level + 1)
    end
  else
    parts[1] = header(count, 0x80, 0xde)
    local used = 1
    for key, item in next, value do
      parts[used + 1] = encode(key, level + 1)
      parts[used + 2] = encode(item, level + 1)
      used = used + 2
    end
  end
  return concat(parts)
end

function encode(value, level)
  local kind = type(value)
  if kind == "string" then
    return encode_string(value)
  elseif kind == "number" then
    return encode_number(value)
  elseif kind == "boolean" then
    return value and "\195" or "\194"
  elseif kind == "table" and level < MAX_NESTING then
    return encode_table(value, level)
  end
  return "\192"
end

function cmsgpack.pack(...)
  local count = select("#", ...)
  if count == 0 then
    arguments.bad_argument(0, "MessagePack pack needs input.", 0)
  end
  local parts, values = {}, { ... }
  for index = 1, count do
    parts[index] = encode(values[index], 0)
  end
  return concat(parts)
end

local MISSING = "Missing bytes in input."
local TOO_MANY = "stack overflow (too many return values at once; use unpack_one or unpack_limit instead.)"

-- Decode a value: the value and the position behind it, or an error text and false.
local decode

local function decode_list(text, position, length, stack)
  if stack + 2 > MAX_STACK then
    return "stack overflow (in function mp_decode_to_lua_array)", false
  end
  local list = {}
  for index = 1, length do
    local value
    value, position = decode(text, position, stack + 2)
    if not position then
      return value, false
    end
    list[index] = value
  end
  return list, position
end

local function decode_map(text, position, length, stack)
  local map = {}
  for _ = 1, length do
    local key, value
    key, position = decode(text, position, stack + 1)
    if not position then
      return key, false
    end
    value, position = decode(text, position, stack + 2)
    if not position then
      return value, false
    elseif key == nil then
      error("table index is nil", 0)
    elseif key ~= key then
      error("table index is NaN", 0)
    end
    map[key] = value
  end
  return map, position
end

local function decode_string(text, position, length)
  local last = position + length - 1
  if last > #text then
    return MISSING, false
  end
  return sub(text, position, last), last + 1
end

-- Decode an unsigned big-endian number of some bytes.
local function decode_uint(text, position, size)
  local a, b, c, d = byte(text, position, position + size - 1)
  if size == 1 and a then
    return a, position + 1
  elseif size == 2 and b then
    return a * 256 + b, position + 2
  elseif size == 4 and d then
    return ((a * 256 + b) * 256 + c) * 256 + d, position + 4
  end
  return MISSING, false
end

local function decode_int(text, position, size)
  local number, after = decode_uint(text, position, size)
  if after and number >= 2 ^ (8 * size - 1) then
    number = number - 2 ^ (8 * size)
  end
  return number, after
end

local function decode_int64(text, position)
  local high, low_at = decode_int(text, position, 4)
  if not low_at then
    return MISSING, false
  end
  local low, after = decode_uint(text, low_at, 4)
  return after and high * 2 ^ 32 + low or MISSING, after
end

local function counted(read, size)
  return function(text, position, stack)
    local length, start = decode_uint(text, position, size)
    if not start then
      return MISSING, false
    end
    return read(text, start, length, stack)
  end
end

local function sized(read, size)
  return function(text, position)
    return read(text, position, size)
  end
end

local function floating(read, size)
  return function(text, position)
    if position + size - 1 > #text then
      return MISSING, false
    end
    return read(text, position), position + size
  end
end

local function constant(value)
  return function(_, position)
    return value, position
  end
end

-- The readers by first byte; position is behind that byte.
local READERS = {
  [0xc0] = constant(nil),
  [0xc2] = constant(false),
  [0xc3] = constant(true),
  [0xca] = floating(decode_float, 4),
  [0xcb] = floating(decode_double, 8),
  [0xcc] = sized(decode_uint, 1),
  [0xcd] = sized(decode_uint, 2),
  [0xce] = sized(decode_uint, 4),
  [0xcf] = decode_int64, -- the C library reads it as a signed number, too
  [0xd0] = sized(decode_int, 1),
  [0xd1] = sized(decode_int, 2),
  [0xd2] = sized(decode_int, 4),
  [0xd3] = decode_int64,
  [0xd9] = counted(decode_string, 1),
  [0xda] = counted(decode_string, 2),
  [0xdb] = counted(decode_string, 4),
  [0xdc] = counted(decode_list, 2),
  [0xdd] = counted(decode_list, 4),
  [0xde] = counted(decode_map, 2),
  [0xdf] = counted(decode_map, 4),
}

-- `stack` counts the values that the C library would hold: it bounds the nesting, too.
function decode(text, position, stack)
  local tag = byte(text, position)
  if not tag then
    return MISSING, false
  elseif stack + 1 > MAX_STACK then
    return TOO_MANY, false
  elseif tag < 0x80 then
    return tag, position + 1
  elseif tag < 0x90 then
    return decode_map(text, position + 1, tag - 0x80, stack)
  elseif tag < 0xa0 then
    return decode_list(text, position + 1, tag - 0x90, stack)
  elseif tag < 0xc0 then
    return decode_string(text, position + 1, tag - 0xa0)
  elseif tag >= 0xe0 then
    return tag - 256, position + 1
  end
  local read = READERS[tag]
  if not read then
    return "Bad data format in input.", false
  end
  return read(text, position + 1, stack)
end

-- Unpack at most `limit` values from an offset on. The public functions call this.
local function unpack_from(text, limit, offset)
  if offset < 0 or limit < 0 then
    local request = "Invalid request to unpack with offset of %d and limit of %d."
    error(format(request, arguments.int32(offset), arguments.int32(#text)), 3)
  elseif offset > #text then
    local request = "Start offset %d greater than input length %d."
    error(format(request, arguments.int32(offset), arguments.int32(#text)), 3)
  end
  local all = limit == 0 and offset == 0
  if all then
    limit = 2 ^ 31 - 1
  end
  local results, used, position = {}, 1, offset + 1
  while position <= #text and used <= limit do
    local value
    value, position = decode(text, position, used)
    if not position then
      error(value, 3)
    elseif used > MAX_RESULTS then
      error(TOO_MANY, 3)
    end
    used = used + 1
    results[used] = value
  end
  if all then
    return unpack(results, 2, used)
  end
  results[1] = position > #text and -1 or position - 1
  return unpack(results, 1, used)
end

-- Each call ends in an assignment, since a tail call would hide the caller from error().
local function keep(...)
  return ...
end

function cmsgpack.unpack(...)
  return keep(unpack_from(arguments.string((...), 1, select("#", ...), 0), 0, 0))
end

function cmsgpack.unpack_one(...)
  local text, offset = ...
  local count = select("#", ...)
  offset = offset == nil and 0 or arguments.integer(offset, 2, count, 0)
  return keep(unpack_from(arguments.string(text, 1, count, 0), 1, offset))
end

function cmsgpack.unpack_limit(...)
  local text, limit, offset = ...
  local count = select("#", ...)
  limit = arguments.integer(limit, 2, count, 0)
  offset = offset == nil and 0 or arguments.integer(offset, 3, count, 0)
  return keep(unpack_from(arguments.string(text, 1, count, 0), limit, offset))
end

return cmsgpack
