"""The numbers that frame an RDB file: its magic, its opcodes, and which server gave them a meaning.

::

    file   := magic record* 0xFF crc(u64 LE) byte*    crc of all bytes before it; 0: not computed;
                                                      absent below version 5; no server reads on
    magic  := "REDIS" version(4 digits) | "VALKEY" version(3 digits)
    record := opcode(u8) fields | type(u8) key(STRING) object

Redis and Valkey agree on everything up to version 11. From then on they give the same numbers other
meanings, so what a number says depends on the dialect, which is told by magic and version together.
"""

from enum import Enum
from typing import NamedTuple

MAGIC_BYTES = 9
CRC_BYTES = 8
CRC_SINCE = 5
"""The first version whose files end with a checksum."""
SHARED_LAST = 11
"""The last version on which Redis and Valkey agree."""
VERSION_MAX = 16
"""The highest version of Redis: met in payloads of Redis 8.10, whose files say 15."""
VALKEY_VERSION = 80
"""The version of Valkey 9, whose streams are those of Redis 7.2. It leaves 12 to 79 to Redis."""


class Dialect(Enum):
    """Whose meaning the numbers have."""

    SHARED = "shared"
    """Up to version 11: Redis to 7.2, Valkey to 8, and others."""
    REDIS = "Redis"
    VALKEY = "Valkey"


class Opcode(Enum):
    """A record that is no key, and its fields."""

    AUX = "STRING name, STRING value"
    SELECTDB = "LEN"
    RESIZEDB = "LEN keys, LEN keys with an expiry"
    SLOT_INFO = "LEN slot, LEN keys, LEN keys with an expiry"
    SLOT_IMPORT = "STRING job, LEN ranges, each LEN LEN"
    EXPIRE_MS = "i64 LE, of the next key"
    EXPIRE_S = "i32 LE, of the next key"
    IDLE = "LEN seconds, of the next key"
    FREQ = "u8, of the next key"
    KEY_META = "LEN classes, each u32 and module values to their end; of the next key"
    HASH_TEMPLATE = "LEN number, LEN fields, each STRING"
    MODULE_AUX = "LEN module, module values to their end"
    FUNCTION = "STRING library"
    FUNCTION_PRE_RELEASE = "STRING name, STRING engine, LEN described, STRING description?, STRING"
    EOF = ""


_SHARED = {
    244: Opcode.SLOT_INFO,
    245: Opcode.FUNCTION,
    246: Opcode.FUNCTION_PRE_RELEASE,
    247: Opcode.MODULE_AUX,
    248: Opcode.IDLE,
    249: Opcode.FREQ,
    250: Opcode.AUX,
    251: Opcode.RESIZEDB,
    252: Opcode.EXPIRE_MS,
    253: Opcode.EXPIRE_S,
    254: Opcode.SELECTDB,
    255: Opcode.EOF,
}
OPCODES: dict[Dialect, dict[int, Opcode]] = {
    Dialect.SHARED: _SHARED,
    Dialect.REDIS: {**_SHARED, 243: Opcode.KEY_META, 242: Opcode.HASH_TEMPLATE},
    Dialect.VALKEY: {**_SHARED, 243: Opcode.SLOT_IMPORT},
}
"""By dialect and first byte. Valkey's 242 carries commands between the keys and is not here: a file
that has it is refused."""

NUMBERS = {opcode: number for table in OPCODES.values() for number, opcode in table.items()}
"""The byte of each opcode."""


class Header(NamedTuple):
    """The first nine bytes of a file."""

    magic: str
    """REDIS or VALKEY."""
    version: int

    @property
    def dialect(self) -> Dialect | None:
        """Whose numbers the file has; None for a version that no known server writes."""
        if self.magic == "VALKEY":
            return Dialect.VALKEY if self.version == VALKEY_VERSION else None
        if self.version <= SHARED_LAST:
            return Dialect.SHARED
        return Dialect.REDIS if self.version <= VERSION_MAX else None

    @property
    def has_checksum(self) -> bool:
        """Whether a checksum follows the end."""
        return self.version >= CRC_SINCE

    def encode(self) -> bytes:
        """Return the nine bytes."""
        digits = MAGIC_BYTES - len(self.magic)
        return f"{self.magic}{self.version:0{digits}}".encode()

    @classmethod
    def decode(cls, data: bytes) -> "Header | None":
        """Return the header in nine bytes, None where they are none."""
        for magic in ("REDIS", "VALKEY"):
            digits = data[len(magic) :]
            if data.startswith(magic.encode()) and len(data) == MAGIC_BYTES and digits.isdigit():
                version = int(digits)
                return cls(magic, version) if version else None
        return None
