-- A check of compiled code: how many parameters its functions have before "...".
--
-- Lua 5.1 writes beyond its stack where there are many of them (CVE-2014-5461). Only compiled code
-- says for sure how many there are, so this reads what string.dump returns: the format of luac 5.1.
local G = ...
local byte, dump, max, type = G.string.byte, G.string.dump, G.math.max, G.type

local HEADER = 12 -- bytes of the header; from the 7th on: the byte order, then sizes of types
local BOOLEAN, NUMBER, STRING = 1, 3, 4 -- types of constants

-- Return a function that reads a number of some bytes: the number and the position behind it.
local function reader(text, size)
  local is_little = byte(text, 7) == 1
  return function(at)
    local number = 0
    for offset = 0, size - 1 do
      number = number * 256 + byte(text, at + (is_little and size - 1 - offset or offset))
    end
    return number, at + size
  end
end

-- Return the largest number of parameters before "..." in a function and those that it has inside.
return function(f)
  local text = dump(f)
  local int_size, length_size, instruction_size, number_size = byte(text, 8, 11)
  local read_int, read_length = reader(text, int_size), reader(text, length_size)

  local function skip_string(at)
    local length, after = read_length(at)
    return after + length
  end

  local function skip_constant(at)
    local kind = byte(text, at)
    if kind == STRING then return skip_string(at + 1) end
    return at + 1 + (kind == NUMBER and number_size or kind == BOOLEAN and 1 or 0)
  end

  local function skip_variable(at)
    return skip_string(at) + 2 * int_size
  end

  local function skip_list(at, skip)
    local count
    count, at = read_int(at)
    if type(skip) == "number" then return at + count * skip end
    for _ = 1, count do at = skip(at) end
    return at
  end

  local most = 0
  local function skip_function(at)
    at = skip_string(at) + 2 * int_size -- the name of the source, the first line and the last one
    local _, parameters, varargs = byte(text, at, at + 2)
    if varargs > 0 then most = max(most, parameters) end
    at = skip_list(at + 4, instruction_size)
    at = skip_list(at, skip_constant)
    at = skip_list(at, skip_function)
    at = skip_list(at, int_size) -- numbers of lines
    at = skip_list(at, skip_variable)
    return skip_list(at, skip_string) -- names of upvalues
  end

  skip_function(HEADER + 1)
  return most
end
