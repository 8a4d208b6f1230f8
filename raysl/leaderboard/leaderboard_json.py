"""The format of `leaderboard.json`, which reads back into an equal leaderboard."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from typing import Any

from raysl.errors import ConfigError
from raysl.leaderboard.entry import Entry, Objective, SweepFacts
from raysl.report.report_json import plain
from raysl.storage.records import Damaged, check_types, from_record, read_record

FORMAT_VERSION = 1
LAST_TIME = 253_402_300_800.0
"""The year 10000, in seconds since 1970."""


def json_text(entries: Sequence[Entry], facts: SweepFacts, rows: Sequence[dict[str, Any]]) -> str:
    """Return the text of `leaderboard.json`: flat `rows` for readers, `entries` and `facts` to load it again. NaN
    is null.
    """
    content = {
        "format": FORMAT_VERSION,
        "facts": asdict(facts),
        "rows": rows,
        "entries": [_without_defaults(entry) for entry in entries],
    }
    return compact(content) + "\n"


def compact(content: Any) -> str:
    """Return content as JSON on one line: null for numbers that are not finite, text for types that JSON lacks."""
    try:
        return json.dumps(content, allow_nan=False, separators=(",", ":"))
    except (ValueError, TypeError):  # there is such a thing in it
        return json.dumps(plain(content), allow_nan=False, separators=(",", ":"))


def parse(text: str | bytes, path: str) -> tuple[list[Entry], SweepFacts]:
    """Return the runs and the facts that such a text holds; numbers that were not finite come back as NaN."""
    try:
        content = read_record(text, path, {"format": Any, "entries": list[dict[str, Any]], "facts": dict})
        if content["format"] != FORMAT_VERSION:
            raise ValueError(f"its format is {content['format']!r}")
        entries = [_entry(one) for one in content["entries"]]
        return entries, _facts(content["facts"])
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise ConfigError(
            f"{path} is no leaderboard.json of format {FORMAT_VERSION} ({error}); start its sweep again"
        ) from error


def _without_defaults(entry: Entry) -> dict[str, Any]:
    """Return the fields of an entry that are not at their defaults, which keeps a thousand waiting runs small."""
    empty = Entry("")
    values = {item.name: getattr(entry, item.name) for item in fields(Entry)}
    return {name: value for name, value in values.items() if name == "trial" or value != getattr(empty, name)}


def _facts(content: dict[str, Any]) -> SweepFacts:
    """Return the facts of a JSON object, with one objective at least and a time that a calendar has."""
    check_types(content, "facts", {"objectives": list[dict[str, Any]]})
    objectives = tuple(from_record(Objective, one, "an objective") for one in content["objectives"])
    facts = from_record(SweepFacts, content | {"objectives": []}, "facts")
    if not objectives or not 0 <= facts.written < LAST_TIME:
        raise Damaged(f"it has {len(objectives)} objectives, and was written at {facts.written}")
    return replace(facts, objectives=objectives)


def _entry(content: dict[str, Any]) -> Entry:
    check_types(content, "an entry", optional=_KINDS)
    numbers: dict[str, Any] = {
        key: {name: _number(value) for name, value in content.get(key, {}).items()} for key in ("metrics", "costs")
    }
    intervals = {name: (_number(low), _number(high)) for name, (low, high) in content.get("intervals", {}).items()}
    course = {name: [(_number(x), _number(y)) for x, y in line] for name, line in content.get("course", {}).items()}
    parents = [(trial, _number(epoch)) for trial, epoch in content.get("parents", [])]
    lists: dict[str, Any] = {"intervals": intervals, "course": course, "parents": parents}
    entry = from_record(Entry, {name: value for name, value in content.items() if name not in _KINDS}, "an entry")
    return replace(entry, **numbers, **lists)


_KINDS: dict[str, Any] = {
    **dict.fromkeys(("metrics", "costs", "intervals", "course"), dict[str, Any]),
    "parents": list[tuple[str, float | None]],
}
"""Fields of an entry with numbers, of which those that were not finite are null."""


def _number(value: float | None) -> float:
    """Return a number of JSON."""
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r:.40} is no number")
    # an integer beyond the largest float raises OverflowError here, which `parse` reports as damage
    float(value)
    return value
