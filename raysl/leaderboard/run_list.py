"""All runs under a storage, as a list or a table."""

import operator
import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from pyarrow import fs

from raysl.checkpoint.checkpoint_folder import META_FILE, SETTINGS_FILE
from raysl.config.arguments import text_or_path, words
from raysl.errors import ConfigError, did_you_mean
from raysl.leaderboard.run_summary import RunSummary, State, summarise
from raysl.report.contents import is_beside
from raysl.runs.folder import RunFolder
from raysl.storage.folder import Folder, absolute, storage_errors
from raysl.storage.reads import REMOTE_READS

if TYPE_CHECKING:
    import pandas as pd

DEPTH = 3
"""Levels below a storage at which runs are looked for: those of a sweep are deeper than a run of one's own."""
FIELDS = (
    *("name", "uri", "state", "reason", "method", "backbone", "dataset"),
    *("step", "epoch", "epochs", "left_s", "updated"),
)
"""Fields of a run that are columns of the table."""
_CONDITION = re.compile(r"(?P<key>[^<>=!]+?)\s*(?P<test><=|>=|!=|=|<|>)\s*(?P<value>.*)")
_TESTS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def find_runs(storage: str, where: str | Sequence[str] = ()) -> list[RunSummary]:
    """Return the runs under a storage, those changed last first.

    Args:
        storage: a local folder or a URI; runs are looked for up to three folders deep.
        where: one condition or a list of conditions `key=value`, also with `!=`, `<`, `<=`, `>`, `>=`, that all have
            to hold. A key is `state`, `name`, `step`, `epoch`, `method`, `backbone`, a setting such as `optim.lr`, or a
            number such as `knn/k20/top1`.
    """
    conditions = [_parsed(text) for text in words([where] if isinstance(where, str) else where, "where", "method=dino")]
    root = Folder(absolute(storage))
    if not root.exists():
        raise ConfigError(f"there is no folder {root.uri}; give the storage of your runs, by default ./runs")
    names = sorted(_names_local(root) if root.is_local else _names_remote(root))

    def read(name: str) -> RunSummary:
        return summarise(RunFolder(root.uri_of(name) if name else root.uri), name or os.path.basename(root.path))

    with ThreadPoolExecutor(4 if root.is_local else REMOTE_READS) as pool:
        runs = list(pool.map(read, names))
    check_keys(runs, [key for key, _ in conditions])
    runs = [run for run in runs if all(holds(run) for _, holds in conditions)]
    return sorted(runs, key=lambda run: (-(run.updated or 0.0), run.name))


def list_runs(storage: str | os.PathLike[str] = "runs", where: str | Sequence[str] = ()) -> "pd.DataFrame":
    """Return the runs under a storage as a table, those changed last first.

    >>> list_runs("runs", where=["method=dino"])[["name", "state", "knn_k20_top1"]]  # doctest: +SKIP

    Args:
        storage: a local folder or a URI.
        where: one condition such as `method=dino`, `state=failed` or `optim.lr>=0.1`, or a list of them; see
            `find_runs`.

    Returns:
        A row for each run: `name`, `uri`, `state`, `reason`, `method`, `backbone`, `dataset`, `step`, `epoch`,
        `epochs`, `left_s`, `updated` (UTC), `seconds` and `gpu_hours` of all starts, and a column for each number that
        a run has logged or measured.

    Raises:
        ConfigError: if the storage is not there, or a condition is none.
    """
    import pandas as pd

    rows = [as_row(run) for run in find_runs(text_or_path(storage, "storage", "runs"), where)]
    table = pd.DataFrame(rows, columns=None if rows else list(as_row(RunSummary("", ""))))
    table["updated"] = pd.to_datetime(table["updated"], unit="s", utc=True)
    return table


def as_row(run: RunSummary) -> dict[str, Any]:
    """Return what is known of a run without its settings, for a table or as JSON."""
    return {**{name: getattr(run, name) for name in FIELDS}, **run.costs.numbers(), **run.metrics}


def value_of(run: RunSummary, key: str) -> Any:
    """Return a field, a number or a setting of a run by its key; None if it has none.

    >>> run = RunSummary("a", "runs/a", metrics={"loss": 2.5}, settings={"optim": {"lr": 0.1}})
    >>> value_of(run, "loss"), value_of(run, "optim.lr"), value_of(run, "state"), value_of(run, "nothing")
    (2.5, 0.1, 'new', None)
    """
    row = as_row(run)
    if key in row:
        return row[key]
    node: Any = run.settings
    for part in key.split("."):
        node = node.get(part) if isinstance(node, dict) else None
    return node


def known_keys(runs: Sequence[RunSummary]) -> set[str]:
    """Return all keys that `value_of` knows of some runs: their fields, numbers and settings."""
    keys = {key for run in runs for key in as_row(run)}
    waiting = [("", run.settings) for run in runs]
    while waiting:
        above, node = waiting.pop()
        for name, value in node.items():
            keys.add(f"{above}{name}")
            if isinstance(value, dict):
                waiting.append((f"{above}{name}.", value))
    return keys


def check_keys(runs: Sequence[RunSummary], keys: Sequence[str]) -> None:
    """Refuse keys that no run has."""
    known = known_keys(runs)
    for key in keys:
        if runs and key not in known:
            numbers = sorted({name for run in runs for name in run.metrics if not is_beside(name)})
            raise ConfigError(
                f"no run has a number or setting {key!r}; {did_you_mean(key, known)}Numbers: {', '.join(numbers)}"
            )


def _parsed(text: str) -> tuple[str, Callable[[RunSummary], bool]]:
    """Return the key of a condition, and what tests it."""
    match = _CONDITION.fullmatch(text.strip())
    if match is None:
        raise ConfigError(
            f"{text!r} is no condition; give key=value, also with !=, <, <=, > or >=, such as method=dino"
        )
    key, test, wanted = match["key"], _TESTS[match["test"]], match["value"]
    states = get_args(State)
    if key == "state" and wanted.lower() not in states:
        raise ConfigError(f"{text!r}: no run has the state {wanted!r}; give one of {', '.join(states)}")
    number = _number(wanted)
    if match["test"] not in ("=", "!=") and number is None:
        raise ConfigError(f"{text!r} compares with {wanted!r}, which is no number; give one, or test with = or !=")

    def holds(run: RunSummary) -> bool:
        value = value_of(run, key)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return match["test"] == "!=" if number is None else test(float(value), number)
        if match["test"] in ("=", "!="):
            return test("null" if value is None else str(value).lower(), wanted.lower())
        return False

    return key, holds


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _names_local(root: Folder) -> Iterator[str]:
    """Yield the paths of runs below a local folder, not of converted weights; links to folders are not followed."""

    def look(path: Path, depth: int) -> Iterator[str]:
        if (path / SETTINGS_FILE).is_file():
            if not (path / META_FILE).is_file():  # a checkpoint has settings too
                yield "/".join(path.relative_to(root.path).parts)
        elif depth < DEPTH:
            with os.scandir(path) as entries:
                folders = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
            for folder in folders:
                yield from look(Path(folder), depth + 1)

    with storage_errors("read", root.uri):
        yield from list(look(Path(root.path), 0))


def _names_remote(root: Folder) -> Iterator[str]:
    """Yield the paths of runs below a folder of a bucket, not of converted weights, by one listing."""
    with storage_errors("read", root.uri):
        infos = root.system.get_file_info(fs.FileSelector(root.path, recursive=True))
    paths = [info.path.removeprefix(root.path).strip("/").rpartition("/") for info in infos]
    folders = {folder for folder, _, name in paths if name == SETTINGS_FILE}
    for folder in folders - {folder for folder, _, name in paths if name == META_FILE}:
        parts = folder.split("/") if folder else []
        above = {"/".join(parts[:number]) for number in range(len(parts))}
        # a checkpoint has settings too: inside its run's folder, or alone
        if len(parts) <= DEPTH and not above & folders:
            yield folder
