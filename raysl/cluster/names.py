"""Names of runs as Ray takes them: its metrics and Ray Train accept printable ASCII, and folders at most 255 bytes."""

import string
import zlib
from urllib.parse import quote

MOST = 200
"""Characters of a name."""
_TAKEN = "".join(sorted({*string.printable} - {*string.whitespace} - {*"/\\?%"})) + " "


def ray_name(name: str) -> str:
    """Return a name in printable ASCII, other characters percent-encoded; a long one is cut and gets a hash.

    >>> ray_name("run 1"), ray_name("süß")
    ('run 1', 's%C3%BC%C3%9F')
    """
    text = quote(name, safe=_TAKEN)
    return text if len(text) <= MOST else f"{text[: MOST - 9]}-{zlib.crc32(name.encode()):08x}"
