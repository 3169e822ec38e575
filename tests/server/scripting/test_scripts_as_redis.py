"""Scripts answer as redis-server's do: values, errors with their positions, both protocols."""

import pytest

from tests.server.asking import Asker
from tests.server.conftest import Served

SCRIPTS = r"""
return 1
return 3.99
return -3.99
return -0.5
return 1e300
return 0/0
return 2^53
return 123456789012
return 'text'
return true
return false
return nil
return function() end
return {}
return {1,2,nil,4}
return {1,false,true}
return {nil,1}
return {[0]='z','a'}
return {n=1,'a'}
return {1.5,2.5,-1.5}
return {'a',{'b',{'c'}}}
return {ok='fine',1}
return {ok='a\r\nb'}
return {err='CODE text'}
return {err='CODE'}
return {err='a\r\nb'}
return {err=5}
return {double=3.5}
return {double=1/0}
return {map={a={1}}}
return {map={}}
return {set={a=1}}
return {big_number='12\r\n3'}
return {verbatim_string={format='txt',string='x'}}
return {verbatim_string={format='abcd',string='x'}}
return {verbatim_string={string='x'}}
return {verbatim_string=1}
local t={} for i=1,300 do t[i]=tostring(i) end return t
local t=setmetatable({},{__index=function(t,k) return k<4 and k or nil end}) return t
redis.setresp(3) return true
redis.setresp(3) return {true,false}
redis.setresp(3) return nil
return {KEYS,ARGV}
KEYS[1]=2 return KEYS[1]
return #ARGV
return redis.call('set','k',1.5)
return redis.call('get','k')
return redis.call('set','k',100000000000000000)
return redis.call('get','k')
return redis.call('incr','k')
return redis.pcall('incr','k')
return redis.pcall('incr','k').err
return redis.call('set','c','5') and redis.call('incr','c')
return {redis.call('get','c'),redis.call('get','nosuch'),'end'}
return redis.call('get','nosuch')==false
redis.setresp(3) return redis.call('get','nosuch')==nil
return redis.call('ping')
return redis.call('ping').ok
return redis.call('XADD','st','5-5','f','v')
return redis.call('XRANGE','st','-','+')
return redis.call('XREAD','STREAMS','st','0')
redis.setresp(3) return redis.call('XREAD','STREAMS','st','0')
redis.setresp(3) return redis.call('XINFO','STREAM','st').map.length
return redis.call('XGROUP','CREATE','st','g','0')
return redis.call('XREADGROUP','GROUP','g','c','STREAMS','st','>')
return redis.call('XPENDING','st','g')
return redis.call('type','st')
return redis.call('select',1)
return redis.call('mget','k','nosuch')
return redis.call('nosuch')
return redis.pcall('nosuch')
return redis.call('get')
return redis.pcall('get')
return redis.call('config')
return redis.call('config','nosuch')
return redis.call('config','get','x')
return redis.call('multi')
return redis.call('eval','return 1',0)
return redis.call('acl','whoami')
return redis.call('debug','sleep',0)
return redis.call()
return redis.pcall()
return redis.call({})
return redis.pcall({})
return redis.call('echo',{})
return redis.call('xadd','s','0-0','a','b')
return redis.call('set','k')
return redis.call('get',
'a','b')
local x = 5
return redis.call('nosuch')
if true then
 return redis.call('nosuch') end
local function f()
 return redis.call('nosuch')
end
local x=f()
return x
error('x')
error('x',0)
error()
error(5)
error(true)
error({err='MY err'})
error({err=7.5})
error({err={}})
error(redis.error_reply('MY thing'))
error(redis.pcall('nosuch'))
local function f() error('deep') end f()
assert(false,'msg')
assert(nil)
return {pcall(assert,false,'m')}
return {pcall(error,{err='A'})}
return {pcall(function() error('x') end)}
return {pcall(function() return redis.call('nosuch') end)}
return {pcall(redis.call)}
return {pcall(pcall)}
local ok,e = pcall() return {ok,e}
local t={pcall(unpack,true)} return t
local t={pcall(next,5),pcall(setmetatable,1)} return t
local x=unpack(5) return x
local u=unpack local x=u(5) return x
local x=('x'):rep({}) return x
local x=('x'):rep(nil) return x
local x=string.rep('x',{}) return x
error('a\0b')
error({err='a\0b'})
return {err='a\0b'}
return redis.error_reply('a\0b c')
return redis.error_reply('-\r\nCODE \r\ntext\r\n')
return {redis.error_reply('\r-\r'), redis.error_reply('\n \n'), redis.error_reply('-a \r\n')}
local c=coroutine.wrap(function() string.match(nil,'x') end) c()
local c=coroutine.wrap(function() local x=unpack(5) end) c()
local c=coroutine.create(function() local x=string.match(nil) end) return {coroutine.resume(c)}
local c=coroutine.wrap(function() error('x') end) local t={pcall(c)} return t
local c=coroutine.wrap(function() error({err='MY x'}) end) c()
local c=coroutine.wrap(function() return 1 end) c() c()
local c=coroutine.wrap(function(...) return (select('#',...)) end) return c(nil,nil)
local c=coroutine.wrap(function() return {coroutine.yield()} end) c() return #c(1,2,3)
return {xpcall(function() error('a') end, function(e) return 'H:'..tostring(e) end)}
local c=coroutine.create(function() error('x') end) return {coroutine.resume(c)}
local c=coroutine.create(function() redis.call('nosuch') end) return {coroutine.resume(c)}
local c=coroutine.wrap(function() coroutine.yield(1) return 2 end) return {c(),c()}
local c=coroutine.wrap(function() redis.call('nosuch') end) c()
return redis.error_reply('x y')
return redis.error_reply('CODE')
return redis.error_reply('')
return redis.error_reply('-')
return redis.error_reply('-CODE ')
return redis.error_reply('-CODE  ')
return {redis.error_reply(''), {err='CODE '}, {err=''}}
return {err='CODE '}
return {err=''}
error({err='CODE '})
error(redis.error_reply(''))
return redis.error_reply('-CODE text')
return redis.error_reply()
return redis.error_reply(1)
return redis.error_reply('a\r\nb c')
return redis.status_reply('x')
return {redis.status_reply('x\0y'), redis.error_reply('x\0y'), {ok='\0'}, {big_number='1\0002'}}
return redis.status_reply()
return redis.sha1hex('x')
return redis.sha1hex('')
return redis.sha1hex()
return redis.sha1hex(1)
return redis.log(1)
return redis.log('a','b')
return redis.log(9,'b')
return redis.log(redis.LOG_DEBUG,'a','b')
return {redis.LOG_DEBUG,redis.LOG_VERBOSE,redis.LOG_NOTICE,redis.LOG_WARNING}
return redis.setresp(1)
return redis.setresp(3.7)
return redis.setresp()
return redis.setresp(3)
return redis.acl_check_cmd('get','x')
return redis.acl_check_cmd('nosuch')
return redis.acl_check_cmd('get')
return redis.acl_check_cmd('xgroup')
return redis.acl_check_cmd('xgroup','create')
return redis.acl_check_cmd('xgroup','nosuch')
return string.rep({},2)
return redis.acl_check_cmd()
return redis.replicate_commands()
return redis.set_repl(redis.REPL_ALL)
return redis.set_repl()
return redis.set_repl(99)
return {redis.REPL_ALL,redis.REPL_AOF,redis.REPL_NONE,redis.REPL_SLAVE,redis.REPL_REPLICA}
return redis.breakpoint()
return redis.debug('x')
syntax error here
#return 1
goto x
x=1
KEYS=1
return x
return redis.x
redis.x=1
redis.call=nil
string.x=1
_G.x=1
_G.redis=nil
_G['KEYS']={}
rawset(_G,'x',1)
rawset(redis,'x',1)
setmetatable(_G,{})
setmetatable(redis,{})
getmetatable('').__index=1
getmetatable(_G).__index=nil
table.insert(redis,1)
table.insert(string,1,2)
return _G._G==_G
return rawget(_G,'redis')==redis
return type(getmetatable(_G))
return getmetatable('x').__index==string
return getmetatable(redis)
local n=0 for k in pairs(redis) do n=n+1 end return n
local n=0 for k in pairs(math) do n=n+1 end return n
local n=0 for k in pairs(table) do n=n+1 end return n
for k,v in next,redis do if k=='nosuch' then return 1 end end return 0
return #_G
return debug
return type(os.clock())
local n=0 for k in pairs(os) do n=n+1 end return n
os.clock=nil
return io
return require
return package
return getfenv
return setfenv
return print
return dofile
return loadfile
return module
return newproxy
return python
return tostring(loadstring('\27Lua'))
return loadstring('return 1')()
return {loadstring('return +','n')}
return select(2,loadstring('x x'))
return loadstring(5)
math.randomseed(77) local a=math.random() math.randomseed(77) return a==math.random()
return string.format('%5.2f|%d|%s|%x|%q',3.14159,42,'x',255,'q')
return ('abc'):upper()..('x'):rep(3)
return {string.gsub('hello','l','L')}
return string.char(256)
return string.format('%d','x')
return {unpack({1,2,3})}
return {tonumber('0x10'),tonumber('zz')}
return 'a'..1 ..nil
return nil+1
local a a.b=1
return ('x').y.z
return math.floor('a')
return {string.byte('abc',1,-1)}
local t={3,1,2} table.sort(t) return t
#!lua
return 1
#!lua flags=no-writes
return redis.call('set','a','b')
#!lua flags=nosuch
return 1
#!python
return 1
#!lua name=foo
return 1
#!lua 'flags=no-writes'
return redis.call('set','a','b')
#!lua "flags
return 1
#!lua flags=no-writes,allow-oom,allow-stale,no-cluster,allow-cross-slot-keys
return 1
#!lua
error('x')
"""
"""One script a line; a line that is no complete script continues on the next."""
_OPENERS = ("#!", "local x = 5", "if true then", "local function f()\n", "return redis.call('get',")


def scripts() -> list[str]:
    lines = SCRIPTS.strip().split("\n")
    found: list[str] = []
    while lines:
        script = lines.pop(0)
        while lines and _goes_on(script):
            script += "\n" + lines.pop(0)
        found.append(script)
    return found


def _goes_on(script: str) -> bool:
    first, _, rest = script.partition("\n")
    if first == "local function f()":
        return script.count("\n") < 4
    return not rest and first.startswith(_OPENERS)


REQUESTS = [
    *(("EVAL", script, "0") for script in scripts()),
    ("EVAL", "#!lua", "0"),
    ("EVAL", "return {KEYS,ARGV}", "2", "a", "b", "c"),
    ("EVAL", "return 1", "x"),
    ("EVAL", "return 1", "-1"),
    ("EVAL", "return 1", "3", "a"),
    ("EVAL",),
    ("EVALSHA", "aa", "0"),
    ("EVALSHA", "aa", "5"),
    ("EVALSHA", "aa", "x"),
    ("EVALSHA", "ffffffffffffffffffffffffffffffffffffffff", "5"),
    ("EVALSHA", "e0e1f9fabfc9d4800c877a703b823ac0578ff8db", "0"),
    ("EVALSHA", "E0E1F9FABFC9D4800C877A703B823AC0578FF8DB", "0"),
    ("EVALSHA", "ffffffffffffffffffffffffffffffffffffffff", "0"),
    ("EVAL_RO", "return redis.call('set','a','b')", "0"),
    ("EVAL_RO", "return redis.pcall('set','a','b').err", "0"),
    ("EVAL_RO", "return redis.call('get','a')", "0"),
    ("EVAL_RO", "#!lua\nreturn 1", "0"),
    ("EVAL_RO", "#!lua flags=allow-oom\nreturn 1", "0"),
    ("EVAL_RO", "#!lua flags=no-writes\nreturn 1", "0"),
    ("EVALSHA_RO", "e0e1f9fabfc9d4800c877a703b823ac0578ff8db", "0"),
    ("SCRIPT",),
    ("SCRIPT", "nosuch"),
    ("SCRIPT", "LOAD"),
    ("SCRIPT", "LOAD", "x x"),
    ("SCRIPT", "LOAD", "return 1"),
    ("SCRIPT", "EXISTS", "e0e1f9fabfc9d4800c877a703b823ac0578ff8db", "x"),
    ("SCRIPT", "EXISTS", "E0E1F9FABFC9D4800C877A703B823AC0578FF8DB"),
    ("SCRIPT", "EXISTS"),
    ("SCRIPT", "FLUSH", "X"),
    ("SCRIPT", "FLUSH", "SYNC", "ASYNC"),
    ("SCRIPT", "FLUSH", "ASYNC"),
    ("SCRIPT", "EXISTS", "e0e1f9fabfc9d4800c877a703b823ac0578ff8db"),
    ("SCRIPT", "KILL"),
    ("SCRIPT", "DEBUG", "X"),
    ("SCRIPT", "DEBUG", "NO"),
    ("COMMAND", "GETKEYS", "EVAL", "x", "2", "a", "b", "c"),
    ("COMMAND", "GETKEYS", "EVAL", "x", "0"),
    ("COMMAND", "GETKEYS", "EVALSHA", "x", "5", "a"),
    ("COMMAND", "GETKEYSANDFLAGS", "EVAL", "x", "1", "a"),
    ("COMMAND", "GETKEYSANDFLAGS", "EVAL_RO", "x", "1", "a"),
]


@pytest.mark.parametrize("protocol", [2, 3])
def test_scripts_answer_as_redis(served: Served, redis82_port: int, protocol: int) -> None:
    with Asker(redis82_port, protocol) as redis, Asker(served.port, protocol) as ours:
        for request in REQUESTS:
            said = redis.ask(*request), ours.ask(*request)
            assert said[1] == said[0], request
            assert type(said[1]) is type(said[0]), request


NUMBERS = """
3.7 -3.7 0.1 0.1+0.2 1/3 100/3 -2/3 123.456 1e5 1e15 1e16 1e17 1e21 1e22 1e300 1.5e300 -0 0/0
1/0 -1/0 1e-4 1e-5 1e-6 1e-7 1.5e-7 123e-9 1.25e-10 2^53 2^61 2^62 2^62+2^11 2^63 -2^62 -2^63
123456789012345680 12345678901234567890 1234567.875 1e9+0.5 1e-300 5e-324 2^-1030 1e15/7
"""


FORMS = "redis.call('echo',{})", "{{double={}}}", "cjson.encode({{{}+0}})"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("protocol", [2, 3])
def test_numbers_are_formatted_as_by_redis_8(
    served: Served, redis82_port: int, protocol: int, form: str
) -> None:
    with Asker(redis82_port, protocol) as redis, Asker(served.port, protocol) as ours:
        for number in NUMBERS.split():
            script = "return " + form.format(number)
            assert ours.ask("EVAL", script, "0") == redis.ask("EVAL", script, "0"), script


def test_without_memory_flags_decide_as_in_redis(served: Served, redis82_port: int) -> None:
    flags = ["", "#!lua\n", *(f"#!lua flags={each}\n" for each in ("allow-oom", "no-writes"))]
    with Asker(redis82_port) as redis, Asker(served.port) as ours:
        for asker in (redis, ours):
            asker.ask("CONFIG SET maxmemory 1")
        try:
            for first in flags:
                for verb in ("EVAL", "EVAL_RO"):
                    for call in ("call('set','a','1')", "pcall('set','a','1')", "call('get','a')"):
                        request = verb, f"{first}return redis.{call}", "0"
                        assert ours.ask(*request) == redis.ask(*request), request
        finally:
            redis.ask("CONFIG SET maxmemory 0")


def test_line_breaks_in_errors_become_blanks(served: Served) -> None:
    with Asker(served.port) as ours:  # Redis 8.2 sends them unchanged
        said = ours.ask("EVAL", r"error({err='a\nb c'})", "0")
    assert said.startswith("a b c script: ")
