-- Read-only tables of the sandbox: proxies, and the functions of Lua that know them.
local error, getmetatable, next, rawget, rawset, select, setmetatable, tonumber, type =
  error, getmetatable, next, rawget, rawset, select, setmetatable, tonumber, type
local format, getinfo, insert, remove, setn, sort =
  string.format, debug.getinfo, table.insert, table.remove, table.setn, table.sort

local READONLY = 'Attempt to modify a readonly table'
local INT_END = 2 ^ 31

local tables = { READONLY = READONLY, INT_END = INT_END }

local shown = setmetatable({}, { __mode = 'k' }) -- proxy -> the table that it shows
local metatables = setmetatable({}, { __mode = 'k' }) -- proxy -> what getmetatable returns
local proxies = {} -- metatable that scripts may use and not change -> its proxy
tables.shown, tables.metatables = shown, metatables

function tables.refuse()
  error(READONLY, 2)
end

-- Return the proxy of a table; two with the same function ``equal`` compare by it.
function tables.protect(real, equal)
  local metatable = { __index = real, __newindex = tables.refuse, __metatable = false, __eq = equal }
  local proxy = setmetatable({}, metatable)
  shown[proxy] = real
  return proxy
end

function tables.protect_metatable(metatable)
  proxies[metatable] = tables.protect(metatable)
end

-- Refuse an argument of the calling function. As in C it is called by the name that its caller has
-- for it, and the object of a method does not count.
local function wrong(position, name, expected, value)
  local called = getinfo(2, 'n')
  if called.namewhat == 'method' then position = position - 1 end
  if getinfo(3, 'S').what ~= 'tail' then name = called.name or '?' end
  error(format("bad argument #%d to '%s' (%s expected, got %s)", position, name, expected, type(value)), 3)
end
tables.wrong = wrong

function tables.next(t, key)
  if shown[t] then return next(shown[t], key) end
  if type(t) ~= 'table' then wrong(1, 'next', 'table', t) end
  return next(t, key)
end

function tables.pairs(t)
  if type(t) ~= 'table' then wrong(1, 'pairs', 'table', t) end
  return tables.next, t, nil
end

function tables.rawget(t, key)
  if type(t) ~= 'table' then wrong(1, 'rawget', 'table', t) end
  return rawget(shown[t] or t, key)
end

function tables.rawset(t, key, value)
  if shown[t] then error(READONLY, 0) end
  if type(t) ~= 'table' then wrong(1, 'rawset', 'table', t) end
  return rawset(t, key, value)
end

function tables.getmetatable(value)
  if shown[value] then return metatables[value] end
  local kind = type(value)
  if kind == 'string' then return tables.string_metatable end
  if kind ~= 'table' then return nil end
  local metatable = getmetatable(value)
  return proxies[metatable] or metatable
end

function tables.setmetatable(t, metatable)
  if shown[t] then error(READONLY, 0) end
  if type(t) ~= 'table' then wrong(1, 'setmetatable', 'table', t) end
  if metatable ~= nil and type(metatable) ~= 'table' then
    error("bad argument #2 to 'setmetatable' (nil or table expected)", 2)
  end
  if shown[metatable] then
    metatable = shown[metatable]
    if not proxies[metatable] then error(READONLY, 0) end
  end
  return setmetatable(t, metatable)
end

-- The functions of the table library that change their first argument.
function tables.remove(t, ...)
  if shown[t] then error(READONLY, 0) end
  if type(t) ~= 'table' then wrong(1, 'remove', 'table', t) end
  return remove(t, ...)
end

function tables.setn(t, ...)
  if shown[t] then error(READONLY, 0) end
  if type(t) ~= 'table' then wrong(1, 'setn', 'table', t) end
  return setn(t, ...)
end

function tables.sort(t, ...)
  if shown[t] then error(READONLY, 0) end
  if type(t) ~= 'table' then wrong(1, 'sort', 'table', t) end
  return sort(t, ...)
end

-- Inserting far before the first item moves nothing, place by place, and nobody can end it.
local PLACE_MIN = -1000

function tables.insert(t, ...)
  if shown[t] then error(READONLY, 0) end
  if type(t) ~= 'table' then wrong(1, 'insert', 'table', t) end
  local place = select('#', ...) > 1 and tonumber((...))
  if place and not (place >= PLACE_MIN and place < INT_END) then
    error("bad argument #2 to 'insert' (position out of bounds)", 2)
  end
  return insert(t, ...)
end

return tables
