"""How a file is changed: bytes of any file, and values of JSON and YAML."""

import json
import random
from typing import Any

ODD_BYTES = (0x00, 0xFF, 0x80, 0x7F, 0x01, 0x0A, 0x22, 0x7B)
ODD_VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 1 << 31, 1 << 63, 1 << 70, 1e308, float("nan"), float("-inf"), 0.5),
    *("", "x", "\x00", "../../x", "a" * 300, "${HOME}", "{}", "\ud800", "1e999", "file:///dev/zero"),
    *([], {}, [None], [[]], {"a": 1}, {"": {}}, [1, "a"]),
)


def mutate(draws: random.Random, content: bytes, others: list[bytes]) -> bytes:
    """Return a changed file; a text of JSON is changed in its values half of the time.

    Args:
        draws: makes every choice.
        content: of the file.
        others: files of the same kind, whose parts may stand in this one.
    """
    if draws.random() < 0.5 and (changed := _changed_json(draws, content)) is not None:
        return changed
    for _ in range(draws.choice((1, 1, 2, 4, 8))):
        content = draws.choice(_BYTEWISE)(draws, content, others)
    return content


def _flip(draws: random.Random, content: bytes, others: list[bytes]) -> bytes:
    place = draws.randrange(len(content) or 1)
    return content[:place] + bytes([draws.choice((draws.randrange(256), *ODD_BYTES))]) + content[place + 1 :]


def _cut(draws: random.Random, content: bytes, others: list[bytes]) -> bytes:
    return content[: draws.randrange(len(content) + 1)]


def _remove(draws: random.Random, content: bytes, others: list[bytes]) -> bytes:
    start = draws.randrange(len(content) or 1)
    return content[:start] + content[start + draws.choice((1, 2, 4, 16, 64)) :]


def _repeat(draws: random.Random, content: bytes, others: list[bytes]) -> bytes:
    start, size = draws.randrange(len(content) or 1), draws.choice((1, 4, 16, 64))
    return content[:start] + content[start : start + size] * draws.choice((2, 3, 50)) + content[start + size :]


def _zero(draws: random.Random, content: bytes, others: list[bytes]) -> bytes:
    start, size = draws.randrange(len(content) or 1), draws.choice((1, 4, 40))
    return content[:start] + bytes(len(content[start : start + size])) + content[start + size :]


def _number(draws: random.Random, content: bytes, others: list[bytes]) -> bytes:
    start, size = draws.randrange(len(content) or 1), draws.choice((1, 2, 4, 8))
    number = draws.choice((0, -1, 1 << (8 * size - 1), (1 << 8 * size) - 1, draws.getrandbits(8 * size)))
    written = (number % (1 << 8 * size)).to_bytes(size, draws.choice(("little", "big")))
    return content[:start] + written + content[start + size :]


def _splice(draws: random.Random, content: bytes, others: list[bytes]) -> bytes:
    other = draws.choice(others)
    start, end = draws.randrange(len(content) + 1), draws.randrange(len(other) + 1)
    return content[:start] + other[end:]


_BYTEWISE = (_flip, _flip, _flip, _cut, _remove, _repeat, _zero, _number, _number, _splice)


def _changed_json(draws: random.Random, content: bytes) -> bytes | None:
    """Return JSON, or one line of JSON lines, with a value, a key or an item changed; None of other files."""
    lines = content.splitlines() or [b""]
    try:
        tree, place = json.loads(content), None
    except ValueError:
        place = draws.randrange(len(lines))
        try:
            tree = json.loads(lines[place])
        except ValueError:
            return None
    for _ in range(draws.choice((1, 1, 2, 3))):
        tree = _changed(draws, tree)
    text = json.dumps(tree).encode()
    if place is None:
        return text
    return b"\n".join([*lines[:place], text, *lines[place + 1 :]]) + b"\n"


def _changed(draws: random.Random, tree: Any) -> Any:
    if not isinstance(tree, dict | list) or not tree or draws.random() < 0.1:
        return draws.choice(ODD_VALUES)
    keys: list[Any] = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
    key, kind = draws.choice(keys), draws.random()
    copy = tree.copy()
    if kind < 0.1:
        del copy[key]
    elif kind < 0.15:
        copy = copy | {"unknown": 1} if isinstance(copy, dict) else copy * 2
    else:
        copy[key] = _changed(draws, tree[key])
    return copy
