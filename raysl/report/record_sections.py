"""The parts of a run's page that say how it was made: times, settings, environment, how to use it."""

import math
from collections.abc import Mapping
from html import escape
from typing import Any

import numpy as np

from raysl.report.contents import RunReport
from raysl.report.curves import curves_of
from raysl.report.html import bar_cell, fold, section, table
from raysl.report.summary import readable


def times_section(report: RunReport) -> str:
    """Return the times of the phases, the throughput, and the events of the run."""
    parts = []
    if report.times:
        total = report.times.get("total") or sum(report.times.values())
        rows = [
            f'<td class="name">{escape(phase)}</td><td class="number">{duration(seconds)}</td>{_share(seconds, total)}'
            for phase, seconds in report.times.items()
            if phase != "total"
        ]
        rows.append(f'<td class="main">total</td><td class="number main">{duration(total)}</td><td></td><td></td>')
        parts.append(f"<div><h3>Time</h3>{table('', rows)}</div>")
    speeds = _speeds(report)
    if speeds:
        parts.append(f"<div><h3>Throughput</h3>{table('', speeds)}</div>")
    lineage = [f"forked from {', which was forked from '.join(report.parents)}"] if report.parents else []
    lines = [*lineage, *(event for event in report.events if not event.startswith("forked from "))]
    events = "".join(f"<li>{escape(event)}</li>" for event in lines)
    happened = f'<div class="events"><h3>On the way</h3><ul>{events}</ul></div>' if events else ""
    if not parts and not happened:
        return ""
    columns = f'<div class="pair">{"".join(parts)}</div>' if parts else ""
    return section("times", "Time and throughput", columns + happened)


def _speeds(report: RunReport) -> list[str]:
    """Return rows of the throughput table, from the history."""
    by_key = {curve.key: curve for curve in curves_of(report.history)}
    rows = []
    for key in ("images_per_s", "step_s", "data_wait", "memory_gb"):
        if key in by_key:
            course, is_peak = by_key[key], key == "memory_gb"
            value = float(course.values.max() if is_peak else np.median(course.values))
            title = f"{course.quantity.title}, {'peak' if is_peak else 'median'}"
            rows.append(f'<td>{title}</td><td class="number">{readable(value)} {course.quantity.unit}</td>')
    return rows


def _share(part: float, total: float) -> str:
    """Return two cells: the share of the total as a number and as a bar; empty where there is none."""
    if not (math.isfinite(part) and math.isfinite(total) and part >= 0 and total > 0):
        return "<td></td><td></td>"
    return f'<td class="number">{part / total:.0%}</td>{bar_cell(100 * part / total)}'


def duration(seconds: float) -> str:
    """Return seconds for people.

    >>> duration(0.42), duration(247), duration(11_520)
    ('0.42 s', '4 min 07 s', '3 h 12 min')
    """
    if not math.isfinite(seconds):
        return "–"
    # from 59.95 on one decimal would show 60.0 s
    if seconds < 59.95:
        return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02d} min"


def settings_section(report: RunReport) -> str:
    """Return the resolved settings as a tree that opens."""
    if not report.config:
        return ""
    tree = _tree(report.config, report.config_docs or {}, "")
    return section("config", "Settings", fold("All settings", tree))


def _tree(node: Mapping[str, Any], docs: Mapping[str, str], path: str) -> str:
    """Return the leaves of a node as a list, then its branches, each of which opens."""
    leaves, branches = [], []
    for key, value in node.items():
        dotted = f"{path}{key}"
        doc = f"<p>{escape(docs[dotted])}</p>" if dotted in docs else ""
        if isinstance(value, Mapping) and value:
            inner = _tree(value, docs, f"{dotted}.")
            branches.append(fold(escape(str(key)), doc + inner, " open"))
        else:
            leaves.append(f"<dt>{escape(str(key))}</dt><dd><code>{escape(_setting(value))}</code>{doc}</dd>")
    return (f'<dl class="tree">{"".join(leaves)}</dl>' if leaves else "") + "".join(branches)


def _setting(value: object) -> str:
    """Return a setting as YAML writes it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_setting(item) for item in value) + "]"
    return str(value)


def environment_section(report: RunReport) -> str:
    """Return versions and hardware."""
    if not report.environment:
        return ""
    rows = "".join(f"<dt>{escape(key)}</dt><dd>{escape(str(value))}</dd>" for key, value in report.environment.items())
    return section("environment", "Environment", f'<dl class="tree">{rows}</dl>')


def use_section(report: RunReport) -> str:
    """Return the command that made the run and the line that loads its backbone."""
    parts = []
    if report.command:
        parts.append(f"<h3>Run it again</h3><pre>{escape(report.command)}</pre>")
    if report.checkpoint:
        checkpoint = report.checkpoint.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        lines = f'import raysl\n\nbackbone = raysl.load_backbone("{checkpoint}")\n'
        lines += "features = backbone(images)  # [B, 3, H, W] -> [B, D]"
        parts.append(f"<h3>Use the backbone</h3><pre>{escape(lines)}</pre>")
    return section("use", "Use it", "".join(parts)) if parts else ""
