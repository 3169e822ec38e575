-- Checks of arguments, with the error texts of Lua's auxiliary library.
--
-- `depth` counts the calls between a library's public function and the check: 0 if the
-- public function calls the check itself. `count` is the number of arguments of the call.
local G = ...
local error, floor, format, getinfo = G.error, G.math.floor, G.string.format, G.debug.getinfo
local tonumber, tostring, type = G.tonumber, G.tostring, G.type

local arguments = {}

local function bad_argument(position, text, depth)
  local call = getinfo(2 + depth, "n")
  if call.namewhat == "method" then
    position = position - 1
    if position == 0 then
      error(format("calling '%s' on bad self (%s)", call.name, text), 3 + depth)
    end
  end
  error(format("bad argument #%d to '%s' (%s)", position, call.name or "?", text), 3 + depth)
end

local function bad_type(expected, value, position, count, depth)
  local found = position > count and "no value" or type(value)
  bad_argument(position, expected .. " expected, got " .. found, depth + 1)
end

arguments.bad_argument = bad_argument

function arguments.number(value, position, count, depth)
  local number = tonumber(value)
  if not number then
    bad_type("number", value, position, count, depth + 1)
  end
  return number
end

-- Cut a number to 64 bits as a C cast of a double does on x86-64.
local function integer(number)
  if number >= -2 ^ 63 and number < 2 ^ 63 then
    return number < 0 and -floor(-number) or floor(number)
  end
  return -2 ^ 63
end

function arguments.integer(value, position, count, depth)
  local number = tonumber(value)
  if not number then
    bad_type("number", value, position, count, depth + 1)
  end
  return integer(number)
end

-- Wrap an integer to a C int.
function arguments.int32(number)
  return (number + 2 ^ 31) % 2 ^ 32 - 2 ^ 31
end

function arguments.string(value, position, count, depth)
  local kind = type(value)
  if kind == "string" then
    return value
  elseif kind == "number" then
    return tostring(value)
  end
  bad_type("string", value, position, count, depth + 1)
end

return arguments
