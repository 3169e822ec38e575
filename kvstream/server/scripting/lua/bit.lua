-- Operations on 32-bit integers, as the library bit of Redis's scripts.
local G, arguments = ...
local abs, floor, format, frexp = G.math.abs, G.math.floor, G.string.format, G.math.frexp
local huge, select, sub, tonumber = G.math.huge, G.select, G.string.sub, G.tonumber
local check_number = arguments.number

local bit = {}

-- Added to a number, it leaves the low 32 bits of the number in the low bits of the mantissa.
local MAGIC = 2 ^ 52 + 2 ^ 51

-- Return an argument as an unsigned 32-bit integer.
local function operand(value, position, count, depth)
  local number = tonumber(value) or check_number(value, position, count, depth or 1)
  local sum = number + MAGIC
  if sum >= 2 ^ 52 and sum < 2 ^ 53 then
    return sum % 2 ^ 32
  elseif sum ~= sum or abs(sum) == huge then
    return 0
  end
  return abs(frexp(sum)) * 2 ^ 53 % 2 ^ 32
end

local function signed(bits)
  return bits < 2 ^ 31 and bits or bits - 2 ^ 32
end

-- AND of all pairs of four bits, at 16 * a + b.
local AND = {}
for a = 0, 15 do
  for b = 0, 15 do
    local both = 0
    for power = 0, 3 do
      local place = 2 ^ power
      if floor(a / place) % 2 == 1 and floor(b / place) % 2 == 1 then
        both = both + place
      end
    end
    AND[16 * a + b] = both
  end
end

local function both(a, b)
  local result, place = 0, 1
  while a > 0 and b > 0 do
    local x, y = a % 16, b % 16
    result = result + AND[16 * x + y] * place
    a, b, place = (a - x) / 16, (b - y) / 16, place * 16
  end
  return result
end

-- Combine arguments. The first one is checked first, then the others from the last one on.
local function reduce(combine, ...)
  local count = select("#", ...)
  local values = { ... }
  local result = operand(values[1], 1, count, 2)
  for position = count, 2, -1 do
    result = combine(result, operand(values[position], position, count, 2))
  end
  return signed(result)
end

local function either(a, b)
  return a + b - both(a, b)
end

local function one(a, b)
  return a + b - 2 * both(a, b)
end

function bit.band(...)
  return (reduce(both, ...))
end

function bit.bor(...)
  return (reduce(either, ...))
end

function bit.bxor(...)
  return (reduce(one, ...))
end

function bit.tobit(...)
  return signed(operand((...), 1, select("#", ...)))
end

function bit.bnot(...)
  return signed(2 ^ 32 - 1 - operand((...), 1, select("#", ...)))
end

function bit.lshift(...)
  local count = select("#", ...)
  local bits = operand((...), 1, count)
  return signed(bits * 2 ^ (operand((select(2, ...)), 2, count) % 32) % 2 ^ 32)
end

function bit.rshift(...)
  local count = select("#", ...)
  local bits = operand((...), 1, count)
  return signed(floor(bits / 2 ^ (operand((select(2, ...)), 2, count) % 32)))
end

function bit.arshift(...)
  local count = select("#", ...)
  local bits = signed(operand((...), 1, count))
  return floor(bits / 2 ^ (operand((select(2, ...)), 2, count) % 32))
end

local function rotate_left(bits, by)
  local high = floor(bits / 2 ^ (32 - by))
  return signed((bits * 2 ^ by) % 2 ^ 32 + high)
end

function bit.rol(...)
  local count = select("#", ...)
  local bits = operand((...), 1, count)
  return (rotate_left(bits, operand((select(2, ...)), 2, count) % 32))
end

function bit.ror(...)
  local count = select("#", ...)
  local bits = operand((...), 1, count)
  return (rotate_left(bits, -operand((select(2, ...)), 2, count) % 32))
end

function bit.bswap(...)
  local bits = operand((...), 1, select("#", ...))
  local a = bits % 256
  local b = (bits - a) / 256 % 256
  local c = floor(bits / 65536) % 256
  return signed(a * 2 ^ 24 + b * 65536 + c * 256 + floor(bits / 2 ^ 24))
end

function bit.tohex(...)
  local count = select("#", ...)
  local bits = operand((...), 1, count)
  local digits = count < 2 and 8 or signed(operand((select(2, ...)), 2, count))
  local text = format(digits < 0 and "%08X" or "%08x", bits)
  digits = abs(digits)
  if digits == 0 then
    return ""
  end
  return sub(text, digits < 8 and -digits or -8)
end

return bit
