"""The bytes of the link: each is read as it was written, and nothing else is accepted."""

import pytest

from kvstream.errors import KVStreamError, ProtocolError, ReplicationRefused, SourceNotReady
from kvstream.layout.history import BRANCH_BYTES, Place
from kvstream.replicas import protocol
from kvstream.replicas.protocol import Continue, Copy, File, Frame, FrameReader

PLACE = Place(3, bytes(range(BRANCH_BYTES)), 12_345)


def words_of(request: bytes) -> list[bytes]:
    """Return the words of a request."""
    return request.split(b"\r\n")[2::2]


def test_a_request_has_the_position() -> None:
    for hands_over in (False, True):
        words = words_of(protocol.encode_sync(PLACE, hands_over))
        assert words[0] == protocol.COMMAND
        assert protocol.decode_sync(words) == (PLACE, hands_over)


@pytest.mark.parametrize(
    "words",
    [
        [],
        [b"1"],
        [b"1", b"1", b"00" * 20, b"1", b"ODD"],
        [b"2", b"1", b"00" * 20, b"1"],
        [b"1", b"1", b"00" * 19, b"1"],
        [b"1", b"1", b"zz" * 20, b"1"],
        [b"1", b"-1", b"00" * 20, b"1"],
        [b"1", b"x", b"00" * 20, b"1"],
    ],
)
def test_another_request_is_refused(words: list[bytes]) -> None:
    with pytest.raises(ReplicationRefused):
        protocol.decode_sync([protocol.COMMAND, *words])


@pytest.mark.parametrize(
    "reply", [Continue(PLACE, 99, {1: "messages", 2: "trees"}), Copy(None), Copy(0), Copy(77)]
)
def test_a_reply_is_read_as_it_was_written(reply: Continue | Copy) -> None:
    encode = protocol.encode_copy if isinstance(reply, Copy) else protocol.encode_continue
    line = encode(reply.fork if isinstance(reply, Copy) else reply)  # type: ignore[arg-type]
    assert line.endswith(b"\r\n")
    assert protocol.decode_reply(line[:-2]) == reply


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (b"-LOADING it loads", SourceNotReady),
        (b"-ERR unknown command 'KVSTREAM.SYNC'", ReplicationRefused),
        (b"-NOPERM no", ReplicationRefused),
        (b"+CONTINUE", ProtocolError),
        (b"+CONTINUE 1 zz 3 4 1:a", ProtocolError),
        (b"+COPY x", ProtocolError),
        (b"+FULLRESYNC 1 2", ProtocolError),
        (b"", ProtocolError),
    ],
)
def test_a_refusal_is_an_error(line: bytes, kind: type[KVStreamError]) -> None:
    with pytest.raises(kind):
        protocol.decode_reply(line)


def test_frames_are_whole_wherever_they_are_divided() -> None:
    frames = [Frame(protocol.LOG, 7, 1 << 40, b"bytes"), Frame(protocol.BEAT, 1 << 63, 2, b"")]
    sent = b"".join(protocol.encode_head(k, a, b, len(p)) + p for k, a, b, p in frames)
    for at in range(len(sent) + 1):
        reader = FrameReader()
        found: list[Frame] = []
        for part in (b"+OK\r\n" + sent[:at], sent[at:]):
            reader.feed(part)
            if not found:
                while reader.line() is not None:
                    pass
            found += list(reader.frames())
        assert found == frames


def test_what_is_no_frame_is_refused() -> None:
    for head in ((9, 0, 0, 0), (0, 0, 0, 0), (protocol.LOG, 0, 0, protocol.PAYLOAD_MAX + 1)):
        reader = FrameReader()
        reader.feed(protocol.encode_head(*head))
        with pytest.raises(ProtocolError):
            list(reader.frames())


def test_a_line_has_an_end() -> None:
    reader = FrameReader()
    reader.feed(b"x" * (protocol.LINE_MAX + 1))
    with pytest.raises(ProtocolError):
        reader.line()


def test_the_files_of_a_copy_stay_in_their_folder() -> None:
    files = [File("CURRENT", 16, "ab" * 32), File("000012.sst", 0, "cd" * 32)]
    reader = FrameReader()
    reader.feed(protocol.encode_files(files))
    [frame] = reader.frames()
    assert protocol.decode_files(frame.payload) == files
    for name in ("../CURRENT", "", "..", "a/b"):
        reader.feed(protocol.encode_files([File(name, 1, "")]))
        [frame] = reader.frames()
        with pytest.raises(ProtocolError):
            protocol.decode_files(frame.payload)
    for payload in (b"", b"[[1]]", b"{", b"[1]"):
        with pytest.raises(ProtocolError):
            protocol.decode_files(payload)
