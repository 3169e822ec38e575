-- Numbers as big-endian IEEE 754 bytes, and back.
local G = ...
local abs, byte, char, find, format = G.math.abs, G.string.byte, G.string.char, G.string.find, G.string.format
local frexp, huge, ldexp = G.math.frexp, G.math.huge, G.math.ldexp

local ieee754 = {}

local NEGATIVE_NAN = 0 / 0 -- the sign bit of x86-64's default NaN is set
if not find(format("%g", NEGATIVE_NAN), "-", 1, true) then
  NEGATIVE_NAN = -NEGATIVE_NAN
end

local function is_negative(number)
  if number == 0 then
    return 1 / number < 0
  elseif number ~= number then
    return find(format("%g", number), "-", 1, true) ~= nil
  end
  return number < 0
end

-- Return the bytes of a 32-bit number. string.char cuts fractions off.
local function uint32(bits)
  return char(bits / 16777216, bits / 65536 % 256, bits / 256 % 256, bits % 256)
end

function ieee754.encode_double(number)
  local sign, magnitude = is_negative(number) and 2 ^ 31 or 0, abs(number)
  if number ~= number then
    return uint32(sign + 0x7ff80000) .. "\0\0\0\0"
  elseif magnitude == huge then
    return uint32(sign + 0x7ff00000) .. "\0\0\0\0"
  end
  local fraction, exponent = frexp(magnitude)
  local mantissa
  if magnitude < 2 ^ -1022 then -- subnormal, or zero
    mantissa, exponent = ldexp(magnitude, 1074), 0
  else
    mantissa, exponent = fraction * 2 ^ 53 - 2 ^ 52, exponent + 1022
  end
  local low = mantissa % 2 ^ 32
  return uint32(sign + exponent * 2 ^ 20 + (mantissa - low) / 2 ^ 32) .. uint32(low)
end

-- Round half to even, as the processor does.
local function round(number)
  return number + 2 ^ 52 - 2 ^ 52
end

function ieee754.encode_float(number)
  local sign, magnitude = is_negative(number) and 2 ^ 31 or 0, abs(number)
  if number ~= number then
    return uint32(sign + 0x7fc00000)
  elseif magnitude >= 2 ^ 128 then
    return uint32(sign + 0x7f800000)
  end
  local fraction, exponent = frexp(magnitude)
  if magnitude < 2 ^ -126 then -- subnormal, or zero
    return uint32(sign + round(ldexp(magnitude, 149)))
  end
  -- A mantissa that rounds up to 2^24 carries into the exponent, and the largest one to infinity.
  return uint32(sign + (exponent + 126) * 2 ^ 23 + round(fraction * 2 ^ 24) - 2 ^ 23)
end

local function decode(negative, exponent, mantissa, mantissa_bits, exponent_max)
  local bias = (exponent_max - 1) / 2
  local number
  if exponent == exponent_max then
    if mantissa ~= 0 then
      return negative and NEGATIVE_NAN or -NEGATIVE_NAN
    end
    number = huge
  elseif exponent == 0 then
    number = ldexp(mantissa, 1 - bias - mantissa_bits)
  else
    number = ldexp(mantissa + 2 ^ mantissa_bits, exponent - bias - mantissa_bits)
  end
  return negative and -number or number
end

function ieee754.decode_double(text, position)
  local a, b, c, d, e, f, g, h = byte(text, position, position + 7)
  local mantissa = ((((b % 16 * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 65536 + g * 256 + h
  return decode(a >= 128, a % 128 * 16 + (b - b % 16) / 16, mantissa, 52, 2047)
end

function ieee754.decode_float(text, position)
  local a, b, c, d = byte(text, position, position + 3)
  local mantissa = b % 128 * 65536 + c * 256 + d
  return decode(a >= 128, a % 128 * 2 + (b >= 128 and 1 or 0), mantissa, 23, 255)
end

return ieee754
