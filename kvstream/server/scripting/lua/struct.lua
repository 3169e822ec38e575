-- Binary structures, as the library struct of Redis's scripts.
local G, arguments, ieee754 = ...
local byte, char, find, format = G.string.byte, G.string.char, G.string.find, G.string.format
local match, rep, reverse, sub = G.string.match, G.string.rep, G.string.reverse, G.string.sub
local concat, error, floor, frexp = G.table.concat, G.error, G.math.floor, G.math.frexp
local select, tonumber, unpack = G.select, G.tonumber, G.unpack
local bad_argument = arguments.bad_argument

local struct = {}

local INT_MAX = 2 ^ 31 - 1
local MAX_INTEGER_SIZE = 32
local MAX_STACK = 8000 -- of values in a C function of Lua
local INTEGER_SIZES = { b = 1, B = 1, h = 2, H = 2, i = 4, I = 4, l = 8, L = 8, T = 8 }

-- Read the digits at a position of a format: the number, the position behind, or an error.
local function read_number(text, position, default)
  local digits = match(text, "^%d+", position)
  if not digits then
    return default, position
  end
  local number = tonumber(digits)
  if number > INT_MAX then
    return nil, position, "integral size overflow"
  end
  return number, position + #digits
end

-- Parse an option at a position of a format. Byte order and alignment are in `state`.
local function parse_option(text, position, state)
  local option = sub(text, position, position)
  local size, problem
  position = position + 1
  if option == "i" or option == "I" then
    size, position, problem = read_number(text, position, 4)
    if size and size > MAX_INTEGER_SIZE then
      problem = format("integral size %d is larger than limit of %d", size, MAX_INTEGER_SIZE)
    end
    return { kind = "integer", size = size, signed = option == "i", problem = problem }, position
  elseif INTEGER_SIZES[option] then
    local signed = find(option, "%l") ~= nil
    return { kind = "integer", size = INTEGER_SIZES[option], signed = signed }, position
  elseif option == "c" then
    size, position, problem = read_number(text, position, 1)
    return { kind = "chars", size = size, problem = problem }, position
  elseif option == "!" then
    size, position, problem = read_number(text, position, 8)
    if size and frexp(size) ~= 0.5 then
      problem = format("alignment %d is not a power of 2", size)
    end
    state.align = size
    return { kind = "control", size = 0, problem = problem }, position
  elseif option == ">" or option == "<" then
    state.big = option == ">"
    return { kind = "control", size = 0 }, position
  elseif option == " " then
    return { kind = "control", size = 0 }, position
  elseif option == "x" then
    return { kind = "pad", size = 1 }, position
  elseif option == "f" then
    return { kind = "float", size = 4 }, position
  elseif option == "d" then
    return { kind = "double", size = 8 }, position
  elseif option == "s" then
    return { kind = "text", size = 0 }, position
  end
  local invalid = "invalid format option '" .. option .. "'"
  return { kind = "control", size = 0, invalid = invalid, word = find(option, "^%w") ~= nil }, position
end

local function parse(text)
  local options, state, position = {}, { big = false, align = 1 }, 1
  text = match(text, "^%Z*")
  while position <= #text do
    local big, align, option = state.big, state.align, nil
    option, position = parse_option(text, position, state)
    option.big, option.align = big, align
    options[#options + 1] = option
    if option.problem then
      break
    end
  end
  return options
end

-- Parsed formats that will be used again.
local parsed, parsed_count = {}, 0

local function options_of(text)
  local options = parsed[text]
  if not options then
    options = parse(text)
    if #text <= 64 then
      if parsed_count == 64 then
        parsed, parsed_count = {}, 0
      end
      parsed[text], parsed_count = options, parsed_count + 1
    end
  end
  return options
end

-- Return the bytes that align an option at an offset; `a & b` of C for b < 32.
local function padding(offset, option)
  local size = option.size
  if option.align == 1 or size == 0 or option.kind == "chars" then
    return 0
  end
  if size > option.align then
    size = option.align
  end
  local function mask(number)
    local result, place = 0, 1
    while place < size do
      if floor(number / place) % 2 == 1 and floor((size - 1) / place) % 2 == 1 then
        result = result + place
      end
      place = place * 2
    end
    return result
  end
  return mask(size - mask(offset))
end

-- Raise the error of an option, if it has one. The public function calls this.
local function check_option(option)
  if option.problem then
    error(option.problem, 3)
  elseif option.invalid then
    bad_argument(1, option.invalid, 1)
  end
end

-- Return the 32-bit halves of a number that C casts to an unsigned 64-bit integer.
local function halves(number)
  if number >= 0 then
    if number >= 2 ^ 64 then
      return 0, 0
    end
    number = floor(number)
    local low = number % 2 ^ 32
    return low, (number - low) / 2 ^ 32
  elseif number < 0 and number > -2 ^ 63 then
    number = floor(-number)
    local low = number % 2 ^ 32
    local high = (number - low) / 2 ^ 32
    if low == 0 then
      return 0, (2 ^ 32 - high) % 2 ^ 32
    end
    return 2 ^ 32 - low, 2 ^ 32 - 1 - high
  end
  return 0, 2 ^ 31
end

-- string.char cuts fractions off.
local function pack_integer(number, size, big)
  local low, high = halves(number)
  local text
  if size == 1 then
    return char(low % 256)
  elseif size <= 4 then
    text = char(low % 256, low / 256 % 256, low / 65536 % 256, low / 16777216)
  else
    text = char(
      low % 256, low / 256 % 256, low / 65536 % 256, low / 16777216,
      high % 256, high / 256 % 256, high / 65536 % 256, high / 16777216
    )
  end
  text = size > 8 and text .. rep("\0", size - 8) or sub(text, 1, size)
  return big and reverse(text) or text
end

local function unpack_integer(text, option)
  local size = option.size
  if option.big then
    text = reverse(text)
  end
  local a, b, c, d, e, f, g, h = byte(text, 1, 8)
  local low = (a or 0) + (b or 0) * 256 + (c or 0) * 65536 + (d or 0) * 16777216
  local high = (e or 0) + (f or 0) * 256 + (g or 0) * 65536 + (h or 0) * 16777216
  if option.signed then
    -- C shifts by the sign's place modulo 64, which matters for more than 8 bytes.
    local place = (size * 8 - 1) % 64
    if place >= 32 then
      if high >= 2 ^ (place - 32) then
        high = high % 2 ^ (place - 32) - 2 ^ (place - 32)
      end
    elseif high > 0 or low >= 2 ^ place then
      return low % 2 ^ place - 2 ^ place
    end
  end
  return high * 2 ^ 32 + low
end

function struct.pack(...)
  local values, count = { ... }, select("#", ...)
  local options = options_of(arguments.string(values[1], 1, count, 0))
  local parts, used, offset, position = {}, 0, 0, 2
  count = count + 1 -- the C library has a nil behind the last argument
  for index = 1, #options do
    local option = options[index]
    check_option(option)
    local kind, size = option.kind, option.size
    local pad = padding(offset, option)
    local part = ""
    if kind == "integer" then
      part = pack_integer(arguments.number(values[position], position, count, 0), size, option.big)
      position = position + 1
    elseif kind == "float" or kind == "double" then
      local number = arguments.number(values[position], position, count, 0)
      part = kind == "float" and ieee754.encode_float(number) or ieee754.encode_double(number)
      if not option.big then
        part = reverse(part)
      end
      position = position + 1
    elseif kind == "chars" or kind == "text" then
      part = arguments.string(values[position], position, count, 0)
      position = position + 1
      if size > #part then
        bad_argument(position, "string too short", 0)
      elseif size > 0 then
        part = sub(part, 1, size)
      end
      if kind == "text" then
        part = part .. "\0"
      end
    elseif kind == "pad" then
      part = "\0"
    end
    if pad > 0 then
      part = rep("\0", pad) .. part
    end
    used = used + 1
    parts[used] = part
    offset = offset + #part
  end
  return concat(parts)
end

function struct.unpack(...)
  local text, data, start = ...
  local count = select("#", ...)
  local options = options_of(arguments.string(text, 1, count, 0))
  data = arguments.string(data, 2, count, 0)
  start = start == nil and 1 or arguments.integer(start, 3, count, 0)
  if start == 0 then
    bad_argument(3, "offset must be 1 or greater", 0)
  end
  local offset, results, used = start - 1, {}, 0
  for index = 1, #options do
    local option = options[index]
    local kind, size = option.kind, option.size
    if kind ~= "control" then -- whose errors come behind that of short data
      check_option(option)
    end
    offset = offset + padding(offset, option)
    if offset < 0 or offset + size > #data then
      bad_argument(2, "data string too short", 0)
    elseif count + used + 2 > MAX_STACK - 8 then
      error("stack overflow (too many results)", 2)
    end
    check_option(option)
    local value
    if kind == "integer" then
      value = unpack_integer(sub(data, offset + 1, offset + size), option)
    elseif kind == "float" or kind == "double" then
      local part = sub(data, offset + 1, offset + size)
      if not option.big then
        part = reverse(part)
      end
      value = kind == "float" and ieee754.decode_float(part, 1) or ieee754.decode_double(part, 1)
    elseif kind == "chars" then
      if size == 0 then
        size = used > 0 and tonumber(results[used])
        if not size then
          error("format 'c0' needs a previous size", 2)
        end
        results[used] = nil
        used = used - 1
        if not (size > -1 and offset + floor(size) <= #data) then
          bad_argument(2, "data string too short", 0)
        end
        size = size < 0 and 0 or floor(size)
      end
      value = sub(data, offset + 1, offset + size)
    elseif kind == "text" then
      local last = find(data, "%z", offset + 1)
      if not last then
        error("unfinished string in data", 2)
      end
      value = sub(data, offset + 1, last - 1)
      size = last - offset
    end
    if value then
      used = used + 1
      results[used] = value
    end
    offset = offset + size
  end
  results[used + 1] = start + (offset - (start - 1)) -- start itself may be beyond exact doubles
  return unpack(results, 1, used + 1)
end

function struct.size(...)
  local options = options_of(arguments.string((...), 1, select("#", ...), 0))
  local offset = 0
  for index = 1, #options do
    local option = options[index]
    if not option.word then
      check_option(option)
    end
    offset = offset + padding(offset, option)
    if option.kind == "text" then
      bad_argument(1, "option 's' has no fixed size", 0)
    elseif option.kind == "chars" and option.size == 0 then
      bad_argument(1, "option 'c0' has no fixed size", 0)
    end
    offset = offset + option.size
  end
  return offset
end

return struct
