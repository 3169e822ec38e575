"""Pub/sub: subscribe to channels, patterns and shard channels, and publish messages to them."""

from kvstream.commands.args import Argv, bad_subcommand
from kvstream.commands.command import EVERY, FIRST, Channels, Family, flags
from kvstream.commands.replies import Push, Pushes, Reply
from kvstream.errors import RequestError
from kvstream.meta.txn import Txn
from kvstream.server.runtime.client import ChannelKind, Client
from kvstream.server.runtime.executor import server_of
from kvstream.server.runtime.pubsub import count_subscriptions, names_of
from kvstream.types.glob import matcher

COMMANDS = Family("pubsub")
COMMANDS.add_help("pubsub", since="6.2.0", categories="")
_SUBSCRIBE = flags("pubsub denyoom noscript loading stale local subscribed")
_UNSUBSCRIBE = flags("pubsub noscript loading stale local subscribed")
_PUBLISH = flags("pubsub loading stale fast may_replicate")
_LOOK = flags("pubsub loading stale local")
_FIRST, _EVERY = Channels(FIRST), Channels(EVERY)
_SHARD_FIRST, _SHARDS = Channels(FIRST, shard=True), Channels(EVERY, shard=True)


def _subscribe(client: Client, kind: ChannelKind, argv: Argv) -> Reply:
    pubsub, word = server_of(client).pubsub, b"%bsubscribe" % kind.value.encode()
    pushes = []
    for name in argv[1:]:
        pubsub.subscribe(client, kind, name)
        pushes.append(Push([word, name, count_subscriptions(client, kind)]))
    return Pushes(pushes)


def _unsubscribe(client: Client, kind: ChannelKind, argv: Argv) -> Reply:
    pubsub, word = server_of(client).pubsub, b"%bunsubscribe" % kind.value.encode()
    pushes = []
    for name in argv[1:] or names_of(client, kind):
        pubsub.unsubscribe(client, kind, name)
        pushes.append(Push([word, name, count_subscriptions(client, kind)]))
    return Pushes(pushes or [Push([word, None, count_subscriptions(client, kind)])])


@COMMANDS.command("subscribe", "channel [channel ...]", _SUBSCRIBE, since="2.0.0", channels=_EVERY)
def subscribe(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Subscribe to channels; each has a reply, with the number of channels and patterns."""
    return _subscribe(client, ChannelKind.CHANNEL, argv)


@COMMANDS.command("unsubscribe", "[channel [channel ...]]", _UNSUBSCRIBE, since="2.0.0")
def unsubscribe(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Unsubscribe from channels, or from all; each has a reply."""
    return _unsubscribe(client, ChannelKind.CHANNEL, argv)


@COMMANDS.command(
    *("psubscribe", "pattern [pattern ...]", _SUBSCRIBE),
    since="2.0.0",
    channels=Channels(EVERY, patterns=True),
)
def psubscribe(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Subscribe to all channels that match a pattern; each pattern has a reply."""
    return _subscribe(client, ChannelKind.PATTERN, argv)


@COMMANDS.command("punsubscribe", "[pattern [pattern ...]]", _UNSUBSCRIBE, since="2.0.0")
def punsubscribe(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Unsubscribe from patterns, or from all; each has a reply."""
    return _unsubscribe(client, ChannelKind.PATTERN, argv)


@COMMANDS.command(
    "ssubscribe", "shardchannel [shardchannel ...]", _SUBSCRIBE, since="7.0.0", channels=_SHARDS
)
def ssubscribe(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Subscribe to shard channels; each has a reply, with the number of shard channels.

    Shard channels have other subscribers than channels of the same name, and match no pattern.
    """
    if client.in_exec:
        raise RequestError("SSUBSCRIBE isn't allowed for a DENY BLOCKING client")
    return _subscribe(client, ChannelKind.SHARD, argv)


@COMMANDS.command(
    *("sunsubscribe", "[shardchannel [shardchannel ...]]", _UNSUBSCRIBE),
    since="7.0.0",
    channels=Channels(EVERY, shard=True, free=True),
)
def sunsubscribe(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Unsubscribe from shard channels, or from all; each has a reply."""
    return _unsubscribe(client, ChannelKind.SHARD, argv)


@COMMANDS.command("publish", "channel message", _PUBLISH, since="2.0.0", channels=_FIRST)
def publish(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Send a message to the subscribers of a channel and of matching patterns; return how many.

    A message to very many subscribers is sent to them little by little, while other clients are
    served: the reply may come first. Each subscriber gets all messages in order.
    """
    return server_of(client).pubsub.publish(argv[1], argv[2])


@COMMANDS.command(
    "spublish", "shardchannel message", _PUBLISH, since="7.0.0", channels=_SHARD_FIRST
)
def spublish(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Send a message to the subscribers of a shard channel; return how many."""
    return server_of(client).pubsub.publish(argv[1], argv[2], shard=True)


def _channels(client: Client, kind: ChannelKind, argv: Argv) -> Reply:
    if len(argv) > 3:
        raise bad_subcommand(argv)
    test = matcher(argv[2] if len(argv) == 3 else b"*")
    return [name for name in server_of(client).pubsub.names[kind] if test(name)]


def _numbers(client: Client, kind: ChannelKind, argv: Argv) -> Reply:
    names = server_of(client).pubsub.names[kind]
    return [part for name in argv[2:] for part in (name, len(names.get(name, ())))]


@COMMANDS.command("pubsub|channels", "[pattern]", _LOOK, since="2.8.0")
def pubsub_channels(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Return the channels with subscribers, or those that match a pattern."""
    return _channels(client, ChannelKind.CHANNEL, argv)


@COMMANDS.command("pubsub|numpat", "", _LOOK, since="2.8.0")
def pubsub_numpat(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Return the number of different patterns with subscribers."""
    return len(server_of(client).pubsub.names[ChannelKind.PATTERN])


@COMMANDS.command("pubsub|numsub", "[channel [channel ...]]", _LOOK, since="2.8.0")
def pubsub_numsub(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Return channels with their numbers of subscribers, without those of patterns."""
    return _numbers(client, ChannelKind.CHANNEL, argv)


@COMMANDS.command("pubsub|shardchannels", "[pattern]", _LOOK, since="7.0.0")
def pubsub_shardchannels(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Return the shard channels with subscribers, or those that match a pattern."""
    return _channels(client, ChannelKind.SHARD, argv)


@COMMANDS.command("pubsub|shardnumsub", "[shardchannel [shardchannel ...]]", _LOOK, since="7.0.0")
def pubsub_shardnumsub(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Return shard channels with their numbers of subscribers."""
    return _numbers(client, ChannelKind.SHARD, argv)
