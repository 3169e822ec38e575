"""How each command of the server is written: for docs/commands.md, and for COMMAND DOCS."""

from kvstream.commands import reference

_CLIENT_TYPE = "NORMAL|MASTER|REPLICA|PUBSUB"

SYNTAX = {
    **reference.SYNTAX,
    "acl|cat": "[category]",
    "acl|deluser": "username [username ...]",
    "acl|dryrun": "username command [arg ...]",
    "acl|genpass": "[bits]",
    "acl|getuser": "username",
    "acl|log": "[count|RESET]",
    "acl|setuser": "username [rule ...]",
    "auth": "[username] password",
    "bgsave": "[SCHEDULE]",
    "client|caching": "yes|no",
    "client|kill": "ip:port|filter value [filter value ...]",
    "client|list": f"[TYPE {_CLIENT_TYPE}] [ID client-id [client-id ...]]",
    "client|no-evict": "on|off",
    "client|no-touch": "on|off",
    "client|pause": "timeout [WRITE|ALL]",
    "client|reply": "on|off|skip",
    "client|setinfo": "lib-name|lib-ver text",
    "client|setname": "name",
    "client|tracking": "on|off [REDIRECT client-id] [PREFIX prefix] [BCAST] [OPTIN] [OPTOUT] "
    "[NOLOOP]",
    "client|unblock": "client-id [TIMEOUT|ERROR]",
    "command|docs": "[command [command ...]]",
    "command|getkeys": "command [arg ...]",
    "command|getkeysandflags": "command [arg ...]",
    "command|info": "[command [command ...]]",
    "command|list": "[FILTERBY MODULE name|ACLCAT category|PATTERN pattern]",
    "config|get": "pattern [pattern ...]",
    "config|set": "setting value [setting value ...]",
    "debug": "subcommand [arg ...]",
    "function|flush": "[ASYNC|SYNC]",
    "hello": "[protover [AUTH username password] [SETNAME name]]",
    "info": "[section [section ...]]",
    "kvstream.load|commit": "load [MARK key number] PART name digest digest rows bytes "
    "GIVEN|ALLOTTED [PART ...]",
    "kvstream.load|discard": "load",
    "kvstream.load|put": "load file offset data",
    "kvstream.load|state": "key serialized-value",
    "kvstream.load|ticket": "[key ...]",
    "latency|graph": "event",
    "latency|histogram": "[command [command ...]]",
    "latency|history": "event",
    "latency|reset": "[event [event ...]]",
    "lolwut": "[VERSION version]",
    "script|flush": "[ASYNC|SYNC]",
    "shutdown": "[NOSAVE|SAVE] [NOW] [FORCE] [ABORT]",
    "slowlog|get": "[count]",
    "wait": "numreplicas timeout",
    "waitaof": "numlocal numreplicas timeout",
    "watch": "key [key ...]",
}
"""By name, as Redis writes it; commands that are not here have no arguments."""
