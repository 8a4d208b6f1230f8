"""The settings in a sweep's folder: another start may add and remove trials, but not change their meaning."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from raysl.config.config_files import read
from raysl.config.dump import differences, dump_all, plain, show, write
from raysl.config.load import stored_settings
from raysl.config.places import SWEEP_FILE
from raysl.config.schema import RunConfig
from raysl.config.trust import check_text
from raysl.errors import ConfigError
from raysl.redact import bare_tree, bare_uri, redact_tree, redact_uri
from raysl.storage.folder import Folder, outlast
from raysl.sweeps.load import dump_sweep
from raysl.sweeps.schema import SweepConfig, is_population

MAY_CHANGE = (
    "config", "configs", "settings", "checkpoints", "benchmarks", "seeds", "trials", "metric", "mode", "concurrent",
    "retries",
)  # fmt: skip
"""Settings that another start of a sweep may change: they add or remove trials. `config` and `settings` are compared by
the base configurations that they give."""
DECIDING = ("configs", "checkpoints", "metric", "mode")
"""Settings that change what a searcher chooses."""
RUNS = ("configs", "checkpoints", "seeds", "trials")
"""Settings that say which runs there are."""


def claim(folder: Folder, name: str, bases: Mapping[str, RunConfig], sweep: SweepConfig) -> list[str]:
    """Claim a folder for this sweep, or check that it belongs to it.

    Returns:
        A line for each setting that has changed since the last start.
    """
    tree = _stored(folder)
    allowed: list[str] = []
    if tree is not None:
        changes, allowed = _changes(tree, bases, sweep)
        if changes:
            listed = "\n  ".join(changes)
            raise ConfigError(
                f"another sweep named {name!r} is in {folder.uri}:\n  {listed}\ngive this one another name=, or go "
                "back to those settings to go on with it"
            )
    starts = {redact_uri(name): base for name, base in bases.items()}
    text = dump_sweep(sweep) + "\n# departs from:\n" + dump_all(starts, "starts")
    folder.write(SWEEP_FILE, text.encode())
    return allowed


def _stored(folder: Folder) -> dict[str, Any] | None:
    """What `sweep.yaml` holds; None where there is none."""
    text = outlast(partial(folder.read_if_there, SWEEP_FILE)).decode()
    check_text(text, SWEEP_FILE)
    tree = read(text, SWEEP_FILE) if text else None
    if tree is not None and (not isinstance(tree, dict) or "starts" not in tree):
        raise ConfigError(f"{folder.uri_of(SWEEP_FILE)} is not of this raysl; give the sweep another name=")
    return tree


def _changes(
    tree: Mapping[str, Any], bases: Mapping[str, RunConfig], sweep: SweepConfig
) -> tuple[list[str], list[str]]:
    """Return lines on differences: those that are refused, and those that are allowed."""
    now = redact_tree(plain(sweep))
    changes: list[str] = []
    allowed: list[str] = []
    fixed = DECIDING if sweep.search != "random" else ("trials",) if is_population(sweep) else ()
    for key, value in now.items():
        if key in ("name", "storage", "early_metric", "early_mode"):
            continue  # those of this folder, and what the others come to is compared below
        then = tree.get(key)
        if bare_tree(then) != bare_tree(value):
            may_change = key in MAY_CHANGE and key not in fixed
            line = f"{key}: {show(then)} -> {show(value)}"
            if key in RUNS and _is_fewer(value, then):
                line += "; runs that it no longer has stay in its folder, and leave its table"
            (allowed if may_change else changes).append(line)
    before = SweepConfig(**{key: tree[key] for key in now if key in tree}).early
    if sweep.scheduler != "none" and before != sweep.early:
        changes.append(
            f"what {sweep.scheduler} looks at: {before.metric} ({before.mode}) -> {sweep.early.metric} "
            f"({sweep.early.mode}); early_metric= keeps it"
        )
    starts = {bare_uri(name): start for name, start in tree["starts"].items()}
    for name, base in bases.items():
        if (start := starts.get(bare_uri(name))) is not None:
            lines = differences(stored_settings(write(start), SWEEP_FILE, base), base)
            epochs = start.get("train", {}).get("epochs", base.train.epochs)
            if epochs != base.train.epochs:
                lines.append(f"train.epochs: {epochs} -> {base.train.epochs}")
            changes += [f"{redact_uri(name)}: {line}" if name else line for line in lines]
    return changes, allowed


def _is_fewer(value: Any, before: Any) -> bool:
    """Whether a number is smaller than before, or a list lacks something that it had."""
    if isinstance(value, list) and isinstance(before, list):
        return any(item not in value for item in before)
    return isinstance(value, int) and isinstance(before, int) and value < before
