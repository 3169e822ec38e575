"""The values of large strings: every piece is there, of its length, and nothing else is."""

from kvstream.layout.keys import successor
from kvstream.meta.strings import StringMeta
from kvstream.operations.checks.survey import Survey
from kvstream.storage.batch import Family


def check_value(survey: Survey, string: StringMeta, place: str) -> None:
    """Look at the pieces of a string's value; nothing can mend those that are lost."""
    pieces = string.pieces
    if pieces is None:
        return
    wanted = stray = 0
    for chunk in survey.chunks(Family.MESSAGES, pieces.prefix, successor(pieces.prefix)):
        for key, value in chunk:
            number = int.from_bytes(key[len(pieces.prefix) :])
            if number >= pieces.count or key != pieces.row(number):
                stray += 1
                survey.findings.delete(Family.MESSAGES, key)
            elif len(value) == pieces.bytes_of(number):
                wanted += 1
    if stray:
        survey.findings.fault(place, "rows beside the pieces of its value", str(stray))
    if wanted != pieces.count:
        detail = f"{pieces.count - wanted} of {pieces.count}"
        survey.findings.fault(place, "pieces of its value are lost", detail, mended=False)
