"""The state and progress of a run, read from a few small files of its folder."""

from dataclasses import dataclass, field
from typing import Any, Literal

import yaml

from raysl.checkpoint.checkpoint_folder import META_FILE, PREFIX, SETTINGS_FILE
from raysl.config.load import stored_tree
from raysl.data.dataset_note import DATASET_FILE, DatasetNote
from raysl.errors import ConfigError
from raysl.redact import redact
from raysl.report.contents import Score, intervals_and_units
from raysl.report.report_json import parse_score
from raysl.runs.folder import RunFolder
from raysl.storage.folder import Version
from raysl.storage.owner import is_at_work
from raysl.storage.records import Damaged, read_record
from raysl.train.callbacks.logs import split_metrics
from raysl.train.costs import COSTS_FILE, Costs
from raysl.train.file_names import EVENTS_FILE, METRICS_FILE, STARTUP_FILE, parse_events
from raysl.user_files import short_name

State = Literal["running", "finished", "stopped", "failed", "interrupted", "new", "damaged"]
TAIL_BYTES = 16_384
LONGEST_LINE = 2_000
REPORT_FILE, PAGE_FILE = "report.json", "report.html"
_ENDS: dict[str, State] = {"finished": "finished", "stopped": "stopped", "failed": "failed"}


@dataclass(frozen=True)
class RunSummary:
    """One run under a storage.

    Args:
        name: path of its folder below the storage.
        state: `running`: a process holds its lock; `finished`: all its epochs are done; `stopped`: it was asked to
            stop; `failed`: it ended with an error; `interrupted`: it ended without a note, for example because its
            machine was lost; `new`: it has done no step; `damaged`: its files cannot be read.
        reason: reason of a failure or a stop, and the damaged files; else empty.
        step: step of the last logged line, or of the newest checkpoint if that is later.
        epoch: epochs done by that step.
        epochs: epochs of the whole run.
        left_s: seconds left at its last speed; None unless it runs and has logged a speed.
        updated: last change of its files, in seconds since 1970; None if the storage lists no times.
        metrics: last value of every number in its last logged lines, and the numbers of its report, `knn/k20/top1`.
        intervals, units: those of the numbers of its report, by the same names.
        has_report: whether it has a `report.html`.
        images: note of its training images; None before it has begun.
        costs: costs of all its starts.
    """

    name: str
    uri: str
    state: State = "new"
    reason: str = ""
    step: int = 0
    epoch: float = 0.0
    epochs: int = 0
    left_s: float | None = None
    updated: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    has_report: bool = False
    images: DatasetNote | None = None
    costs: Costs = field(default_factory=Costs)

    @property
    def dataset(self) -> str:
        """Names of its source of images, and of the dataset or folder that the source reads."""
        data = self.settings.get("data")
        node = data if isinstance(data, dict) else {}
        of_source = node.get("dataset") or str(node.get("path") or "").rstrip("/").rpartition("/")[2]
        return redact(" ".join(str(part) for part in (_name(self.settings, "data"), of_source) if part))

    @property
    def method(self) -> str:
        """Name of its method."""
        return _name(self.settings, "method")

    @property
    def backbone(self) -> str:
        """Name of its backbone."""
        return _name(self.settings, "backbone")


def summarise(folder: RunFolder, name: str) -> RunSummary:
    """Read the summary of a run; its state is `damaged` if a file in its folder is."""
    try:
        return _read(folder, name)
    except Damaged as error:
        return RunSummary(name, folder.uri, "damaged", str(error))


def _read(folder: RunFolder, name: str) -> RunSummary:
    versions = folder.versions()
    settings = _settings(folder)
    metrics: dict[str, float] = {}
    lines, damaged = split_metrics(_tail(folder, METRICS_FILE, versions))
    for line in lines:
        metrics |= line
    events = parse_events(_tail(folder, EVENTS_FILE, versions), is_strict=True)
    step, epoch = int(metrics.pop("step", 0)), float(metrics.pop("epoch", 0.0))
    meta = _newest_meta(folder, versions)
    # not every step is logged, so the newest checkpoint may be later than the last line
    if (saved := int(meta.get("step", 0))) >= step:
        step, epoch = saved, float(meta.get("metrics", {}).get("epoch", 0.0))
    epochs = _number(settings, "train", "epochs")
    state, reason = _state(folder, versions, events, is_done=0 < epochs <= epoch, has_step=step > 0)
    is_ended = meta.get("ended") is not None
    if state == "interrupted" and is_ended:
        state, reason = "finished", str(meta["ended"])
    if damaged:
        note = (
            f"{METRICS_FILE} has damaged lines, which are left out: {len(damaged)} in its last {TAIL_BYTES // 1024} KB"
        )
        reason = f"{reason}; {note}" if reason else note
    # epochs left, times steps of an epoch so far, times the newest seconds of a step
    left_s = (epochs - epoch) / epoch * step * metrics.get("step_s", 0.0) if state == "running" and epoch else None
    measured, scores = _report(folder, versions)
    intervals, units = intervals_and_units(scores)
    times = [version.time for version in versions.values() if version.time is not None]
    return RunSummary(
        name=name,
        uri=folder.uri,
        state=state,
        reason=reason,
        step=step,
        epoch=epoch,
        epochs=epochs,
        left_s=left_s or None,
        updated=max(times) / 1e9 if times else None,
        metrics=metrics | measured,
        intervals=intervals,
        units=units,
        settings=settings,
        has_report=PAGE_FILE in versions,
        images=DatasetNote.read(folder) if DATASET_FILE in versions else None,
        costs=Costs.read(folder) if COSTS_FILE in versions else Costs(),
    )


def _state(
    folder: RunFolder, versions: dict[str, Version], events: list[dict[str, Any]], is_done: bool, has_step: bool
) -> tuple[State, str]:
    if is_at_work(folder, versions):
        return "running", ""
    last: dict[str, Any] = next((event for event in reversed(events) if event.get("kind") != "save"), {})
    if last.get("kind") in _ENDS:
        state = _ENDS[last["kind"]]
        return state, "" if state == "finished" else str(last.get("event", ""))
    if is_done:  # the run has no note of its end
        return "finished", ""
    return ("interrupted", "") if has_step or STARTUP_FILE in versions or events else ("new", "")


def _settings(folder: RunFolder) -> dict[str, Any]:
    """Read the settings without building them: a thousand runs are read in seconds."""
    text, where = folder.read_if_there(SETTINGS_FILE).decode(errors="replace"), folder.uri_of(SETTINGS_FILE)
    try:
        if not _is_plain(text):
            return stored_tree(text, where)
        tree = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, RecursionError, ConfigError) as error:
        raise Damaged(f"{where} is damaged: {error}") from error
    if not isinstance(tree, dict):
        raise Damaged(f"{where} is damaged: it has no settings")
    return tree


def _is_plain(text: str) -> bool:
    """Whether YAML has no aliases and no deep nesting, for which only the safe but slow reader is used."""
    return "*" not in text and "&" not in text and all(len(line) < LONGEST_LINE for line in text.splitlines())


def _newest_meta(folder: RunFolder, versions: dict[str, Version]) -> dict[str, Any]:
    """Read `meta.json` of the newest checkpoint that has one; do not verify the checkpoint's other files."""
    for name in sorted((name for name in versions if name.startswith(PREFIX)), reverse=True):
        content = folder.read_if_there(f"{name}/{META_FILE}")
        if content:
            kinds = {"step": int, "metrics": dict[str, Any]}
            meta: dict[str, Any] = read_record(content, folder.uri_of(f"{name}/{META_FILE}"), optional=kinds)
            return meta
    return {}


def _report(folder: RunFolder, versions: dict[str, Version]) -> tuple[dict[str, float], list[Score]]:
    """Read the numbers of a run's report, by name and as scores; both are empty if it has no report."""
    if REPORT_FILE not in versions:
        return {}, []
    uri, kinds = folder.uri_of(REPORT_FILE), {"metrics": dict[str, float], "scores": list[dict[str, Any]]}
    report = read_record(folder.read_if_there(REPORT_FILE), uri, optional=kinds)
    return report.get("metrics", {}), [parse_score(score, uri) for score in report.get("scores", [])]


def _tail(folder: RunFolder, name: str, versions: dict[str, Version]) -> bytes:
    return folder.last_lines(name, TAIL_BYTES) if name in versions else b""


def _name(settings: dict[str, Any], key: str) -> str:
    node = settings.get(key)
    return short_name(str(node.get("name", "")) if isinstance(node, dict) else str(node or ""))


def _number(settings: dict[str, Any], *keys: str) -> int:
    node: Any = settings
    for key in keys:
        node = node.get(key) if isinstance(node, dict) else None
    return node if isinstance(node, int) else 0
