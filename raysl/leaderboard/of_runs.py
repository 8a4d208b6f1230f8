"""All runs under a storage as a leaderboard, whatever started them: the page of `raysl runs`."""

import json
import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from raysl.leaderboard.entry import Entry, Objective, Status, SweepFacts
from raysl.leaderboard.leaderboard import MOST_POINTS, Leaderboard, thinned
from raysl.leaderboard.page.page import page
from raysl.runs.folder import RunFolder
from raysl.runs.logged import Logged
from raysl.runs.overview import find_runs, value_of
from raysl.runs.summary import RunSummary, State
from raysl.storage.addresses import absolute
from raysl.storage.folder import Folder
from raysl.storage.reads import REMOTE_READS
from raysl.train.callbacks.logs import split_metrics
from raysl.train.files import METRICS_FILE

PAGE_FILE = "runs.html"
STATUSES: dict[State, Status] = {
    "running": "running",
    "finished": "finished",
    "stopped": "stopped",
    "interrupted": "stopped",
    "failed": "failed",
    "damaged": "failed",
    "new": "waiting",
}
INTERRUPTED = "it ended without a word, as by a lost machine; the command that started it goes on"
OWN = ("name", "storage", "seed")
"""Settings in which runs that are seeds of one another differ."""
COSTS = ("step_s", "memory_gb")
PERCENT = re.compile(r"top\d+\b")
"""Is in the names of accuracies."""


class RunsPage:
    """Makes the page over the runs under a storage; a run is read again once its files have changed.

    Args:
        storage: a local folder or a URI.
        where: conditions as `find_runs` takes them.
        show: settings that the table has a column for, such as `optim.lr`.
        objective: the number that ranks; None: `knn_k20_top1` where a run has it, else the least loss.
    """

    def __init__(
        self, storage: str, where: Sequence[str] = (), show: Sequence[str] = (), objective: Objective | None = None
    ) -> None:
        self.storage, self.where, self.show, self.objective = storage, where, show, objective
        self._logged: dict[str, tuple[RunSummary, Logged]] = {}

    def board(self, is_served: bool = False) -> Leaderboard:
        """Return the runs as they are now, a row each; runs that differ in their seed alone share one.

        Args:
            is_served: whether the page loads itself again while runs go on.

        Raises:
            ConfigError: if the storage cannot be read, or a condition is none.
        """
        runs = find_runs(self.storage, self.where)
        root = Folder(absolute(self.storage))
        with ThreadPoolExecutor(4 if root.is_local else REMOTE_READS) as pool:
            logged = dict(zip((run.uri for run in runs), pool.map(self._read, runs), strict=True))
        self._logged = {run.uri: (run, logged[run.uri]) for run in runs}
        names: dict[str, str] = {}
        entries = []
        for index, run in enumerate(sorted(runs, key=lambda run: run.name)):
            group = names.setdefault(_without_seed(run.settings) or run.name, run.name)
            entries.append(self._entry(run, logged[run.uri], index, group))
        is_running = is_served and any(run.state == "running" for run in runs)
        facts = SweepFacts(
            name=root.path.rstrip("/").rpartition("/")[2] or root.uri,
            objectives=(self.objective or _objective(runs),),
            path=root.uri,
            state="running" if is_running else "done",
            written=time.time(),
            kind="runs",
        )
        return Leaderboard(entries, facts)

    def html(self, is_served: bool = False) -> str:
        """Return the page; arguments and errors as of `board`."""
        return page(self.board(is_served))

    def folder_of(self, name: str) -> Folder | None:
        """Return the folder of a run of the last page by its name; None if there is none."""
        return next((RunFolder(run.uri) for run, _ in self._logged.values() if run.name == name), None)

    def write(self) -> str:
        """Write the page into the storage as `runs.html`; returns its path or URI."""
        root = Folder(absolute(self.storage))
        root.write(PAGE_FILE, self.html().encode())
        return root.uri_of(PAGE_FILE)

    def _read(self, run: RunSummary) -> Logged:
        before = self._logged.get(run.uri)
        if before is not None and before[0] == run and run.updated is not None:
            return before[1]
        lines, _ = split_metrics(RunFolder(run.uri).read_if_there(METRICS_FILE))
        return Logged([line for line in lines if "epoch" in line and "step" in line])

    def _entry(self, run: RunSummary, logged: Logged, index: int, group: str) -> Entry:
        numbers = logged.newest() | run.metrics
        seconds = logged.seconds()
        shown = {
            name: value for name in self.show if (value := value_of(run, name)) is not None and name not in numbers
        }
        return Entry(
            trial=run.name,
            index=index,
            status=STATUSES[run.state],
            config=group,
            settings={"method": run.method, "backbone": run.backbone, **shown},
            seed=_seed(run.settings),
            epochs=run.epochs,
            epoch=run.epoch,
            metrics={name: value for name, value in numbers.items() if name not in COSTS},
            units={name: "%" for name in numbers if PERCENT.search(name)},
            course={name: thinned(curve, MOST_POINTS) for name, curve in logged.curves().items()},
            costs={name: numbers[name] for name in COSTS if name in numbers}
            | ({"seconds": seconds[-1][1]} if seconds else {}),
            reason=run.reason or (INTERRUPTED if run.state == "interrupted" else ""),
            path=run.uri if run.has_report else "",
        )


def _objective(runs: Sequence[RunSummary]) -> Objective:
    """Return the number that ranks unless another is asked for."""
    for name in ("knn_k20_top1", "knn/k20/top1"):
        if any(name in run.metrics for run in runs):
            return Objective(name)
    return Objective("loss", "min")


def _without_seed(settings: dict[str, Any]) -> str:
    """Return what is the same for runs that are seeds of one another; empty for a run without settings."""
    rest = {name: value for name, value in settings.items() if name not in OWN}
    return json.dumps(rest, sort_keys=True, default=str) if rest else ""


def _seed(settings: dict[str, Any]) -> int:
    seed = settings.get("seed", 0)
    return seed if isinstance(seed, int) else 0
