"""The groups and consumers of one stream: their records, and how many there are."""

from kvstream.layout.keys import tree_prefix
from kvstream.meta.records import ConsumerMeta, GroupMeta, StreamMeta
from kvstream.operations.checks.findings import consumer_place, group_place
from kvstream.operations.checks.owners import Owner
from kvstream.operations.checks.runs import NOT_COUNTED, check_runs
from kvstream.operations.checks.survey import DECODING_ERRORS, Survey
from kvstream.storage.batch import Family

_TREES = Family.TREES
_UNDECODABLE = "the record cannot be decoded"


def check_groups(survey: Survey, stream: StreamMeta, place: str) -> None:
    """Check every group of a stream, and set the stream's number of groups."""
    count = 0
    if stream.groups_tree:
        survey.claim_tree(place, stream.groups_tree)
        for name, record in survey.tree(stream.groups_tree):
            count += 1
            _check_group(survey, stream, group_place(place, name), name, record)
    settle = survey.findings.settle
    stream.groups_count = settle(place, "the number of groups", stream.groups_count, count)


def _check_group(
    survey: Survey, stream: StreamMeta, place: str, name: bytes, record: bytes
) -> None:
    row = tree_prefix(stream.groups_tree) + name
    try:
        group = GroupMeta.decode(name, row, record)
    except DECODING_ERRORS:
        survey.findings.fault(place, _UNDECODABLE, mended=False)
        survey.owner_lost = True
        return
    for tree in (group.consumers_tree, group.runs.id, group.times.id):
        survey.claim_tree(place, tree)
    owners = _owners(survey, group, place)
    check_runs(survey, group, place, owners)
    settle = survey.findings.settle
    _check_activity(survey, group, place, owners)
    for owner in owners.values():
        _check_owner(survey, group, owner)
    group.consumers_count = settle(
        place, "the number of consumers", group.consumers_count, len(owners)
    )
    if group.encode() != record:
        survey.findings.put(_TREES, row, group.encode())


def _check_activity(
    survey: Survey, group: GroupMeta, place: str, owners: dict[bytes, Owner]
) -> None:
    """See that the group tells of a consumer that there is, and none of what is yet to come."""
    told = group.activity
    if told.is_known and told.name not in owners:
        survey.findings.fault(place, "the consumer that was active last has no record")
        told.tell_nobody()
    for owner in owners.values():
        consumer = owner.consumer
        if consumer is not None and consumer.activity > told.number:
            detail = f"{consumer.activity} above {told.number}"
            survey.findings.fault(owner.place, "its activity is yet to come", detail)
            consumer.activity = told.number


def _owners(survey: Survey, group: GroupMeta, place: str) -> dict[bytes, Owner]:
    """Return the consumers of a group by name."""
    owners = {}
    for name, record in survey.tree(group.consumers_tree):
        row = tree_prefix(group.consumers_tree) + name
        own = consumer_place(place, name)
        try:
            consumer = ConsumerMeta.decode(name, row, record)
        except DECODING_ERRORS:
            survey.findings.fault(own, _UNDECODABLE)
            owners[name] = Owner(own, name, row)
            continue
        survey.claim_tree(own, consumer.runs.id)
        owners[name] = Owner(own, name, row, consumer, record)
    return owners


def _check_owner(survey: Survey, group: GroupMeta, owner: Owner) -> None:
    """Set a consumer's number of pending entries; make the one whose record is lost anew."""
    consumer = owner.consumer
    if consumer is None:
        survey.afterwards.append(lambda: owner.make(survey))
        return
    if group.indexed:
        what = "the number of pending entries"
        settle = survey.findings.settle
        consumer.pending = settle(owner.place, what, consumer.pending, owner.pending)
    elif consumer.pending:
        survey.findings.fault(owner.place, NOT_COUNTED, str(consumer.pending))
        consumer.pending = 0
    if consumer.encode() != owner.record:
        survey.findings.put(_TREES, consumer.row, consumer.encode())
