-- Replies as scripts see them: those of commands, and what a script returns, both encoded as RESP.
local shown = ... -- proxy -> the table that it shows
local error, next, pairs, rawget, tonumber, type = error, next, pairs, rawget, tonumber, type
local byte, find, format, match, rep, sub =
  string.byte, string.find, string.format, string.match, string.rep, string.sub
local ceil, floor, concat = math.ceil, math.floor, table.concat

local DEPTH_MAX = 7995 -- Redis's depth of replies: the Lua stack ends there

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

local function one_line(text)
  return (text:gsub('[\r\n]', ' '))
end

local function c_line(text) -- up to a zero byte, where a text of C ends
  return one_line(match(text, '^[^%z]*'))
end

local function integer(number)
  if number ~= number or number >= 2 ^ 63 or number < -2 ^ 63 then return '-9223372036854775808' end
  number = number < 0 and ceil(number) or floor(number)
  return number == 0 and '0' or format('%.0f', number)
end

-- Encode a table that a script returns as RESP; see luaReplyToRedisReply in Redis's documentation.
-- ``resp`` is the protocol in which the script gets replies.
local function encode(result, protocol, resp, size_max)
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
    if type(found) == 'string' then return put('-' .. c_line(found) .. '\r\n') end
    found = rawget(t, 'ok')
    if type(found) == 'string' then return put('+' .. c_line(found) .. '\r\n') end
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

return { parse = parse, encode = encode, number_text = number_text }
