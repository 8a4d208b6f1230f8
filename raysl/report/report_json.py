"""`report.json`: all of a report but its pictures, which reads back into an equal one."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any, cast

import numpy as np

from raysl.errors import ConfigError
from raysl.report.contents import RunReport, Score
from raysl.report.verdict import verdicts
from raysl.storage.records import Damaged, check_types, from_record, read_record

FORMAT_VERSION = 1
INTERVALS = ("interval", "over_untrained", "over_pixels")
PICTURES = ("embeddings", "neighbours", "views", "retrieved", "patches", "reconstructions")


def report_json(report: RunReport) -> str:
    """Return the text of report.json: everything but pictures and embeddings, and a verdict on each benchmark.

    NaN and infinities become null.
    """
    content: dict[str, Any] = {"format": FORMAT_VERSION, "metrics": report.metrics}
    content |= {item.name: getattr(report, item.name) for item in fields(report) if item.name not in PICTURES}
    content["scores"] = [asdict(score) for score in report.scores]
    content["verdicts"] = verdicts(report.scores)
    return json.dumps(plain(content), indent=2, allow_nan=False) + "\n"


def parse_report_json(text: str | bytes, path: str) -> RunReport:
    """Return the report of a report.json, without pictures; a `trained` of null comes back as NaN."""
    content = read_record(text, path)
    version = content.get("format")
    if version != FORMAT_VERSION:
        expected = f"report.json of format {FORMAT_VERSION}"
        raise ConfigError(f"{path} is no {expected} (its format is {version!r}); write it again from its run")
    known = {item.name for item in fields(RunReport)} - set(PICTURES)
    values = {name: value for name, value in content.items() if name in known}
    check_types(values, path, {"scores": list[dict[str, Any]]}, _KINDS)
    try:
        values["scores"] = [parse_score(score, path) for score in content["scores"]]
        times = values.get("times", {})
        values["times"] = {phase: math.nan if seconds is None else seconds for phase, seconds in times.items()}
        return RunReport(**values)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise Damaged(f"{path} is damaged: {error}") from error


_KINDS = {
    **dict.fromkeys(("name", "method", "backbone", "dataset"), str),
    **dict.fromkeys(("checkpoint", "measured_on", "command", "finished"), str),
    **dict.fromkeys(("config", "figures"), dict[str, Any]),
    "environment": dict[str, str],
    "times": dict[str, float | None],
    **dict.fromkeys(("notes", "events", "parents"), list[str]),
    "config_docs": dict[str, str] | None,
    "history": list[dict[str, Any]],
    "step": int,
}
"""Types of the fields of a report."""


def parse_score(content: dict[str, Any], where: str) -> Score:
    """Return the score of a JSON object; without an interval where one of its bounds was not finite.

    Raises:
        Damaged: if a field is missing, unknown or of another type.
    """
    bounds = {name: content.get(name) for name in INTERVALS}
    check_types(bounds, where, dict.fromkeys(INTERVALS, tuple[float | None, float | None] | None))
    intervals = {name: None if ends is None or None in ends else (ends[0], ends[1]) for name, ends in bounds.items()}
    check_types(content, where, {"trained": float | None})
    trained = math.nan if content["trained"] is None else content["trained"]
    score = from_record(Score, {**content, "trained": trained, **dict.fromkeys(INTERVALS)}, where)
    return replace(score, **cast(Any, intervals))


def plain(value: object) -> Any:
    """Return `value` in the types of JSON: NaN and infinities as None, unknown types as text."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)
