"""All runs under a storage as a leaderboard, whatever started them: the page of `raysl runs`."""

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from raysl.leaderboard.entry import Entry, Objective, Status, SweepFacts
from raysl.leaderboard.leaderboard import MOST_POINTS, Leaderboard, thinned
from raysl.leaderboard.logged import Logged
from raysl.leaderboard.page.leaderboard_page import page
from raysl.leaderboard.run_list import check_keys, find_runs, value_of
from raysl.leaderboard.run_summary import RunSummary, State
from raysl.report.contents import online_names
from raysl.runs.folder import RunFolder
from raysl.storage.folder import Folder, absolute
from raysl.storage.reads import REMOTE_READS
from raysl.train.callbacks.logs import split_metrics
from raysl.train.file_names import METRICS_FILE

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
HELD_OUT = ("test", "test_split", "num_test")
"""Settings of the data that choose the held-out images."""
BENCHMARK_KNN = re.compile(r"knn/k\d+/top1")
PERCENT = re.compile(r"top\d+\b")
"""Part of the names of accuracies that runs log while they train."""


class RunsPage:
    """Makes the page over the runs under a storage; a run is read again once its files have changed.

    Args:
        storage: a local folder or a URI.
        where: conditions as `find_runs` takes them.
        show: settings that the table has a column for, such as `optim.lr`.
        objective: the number that ranks; None: the kNN that most runs have, else the least loss.
        protocols: returns the protocols of a run's measurements from its settings, see `Entry.protocols`.
    """

    def __init__(
        self,
        storage: str,
        where: Sequence[str] = (),
        show: Sequence[str] = (),
        objective: Objective | None = None,
        protocols: Callable[[dict[str, Any]], dict[str, str]] = lambda settings: {},
    ) -> None:
        self.storage, self.where, self.show, self.objective = storage, where, show, objective
        self.protocols = protocols
        self._logged: dict[str, tuple[RunSummary, Logged]] = {}

    def board(self, is_served: bool = False) -> Leaderboard:
        """Return the runs as they are now; runs that differ in their seed alone share a row.

        A page that is served loads itself again while runs go on.
        """
        runs = find_runs(self.storage, self.where)
        check_keys(runs, [*self.show, *([self.objective.metric] if self.objective else [])])
        datasets = _datasets(runs)
        root = Folder(absolute(self.storage))
        with ThreadPoolExecutor(4 if root.is_local else REMOTE_READS) as pool:
            logged = dict(zip((run.uri for run in runs), pool.map(self._read, runs), strict=True))
        self._logged = {run.uri: (run, logged[run.uri]) for run in runs}
        names: dict[str, str] = {}
        entries = []
        for index, run in enumerate(sorted(runs, key=lambda run: run.name)):
            group = names.setdefault(_without_seed(run.settings) or run.name, run.name)
            entries.append(self._entry(run, logged[run.uri], index, group, datasets))
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
        # an equal summary with a time of change means unchanged files; some storages tell no time
        if before is not None and before[0] == run and run.updated is not None:
            return before[1]
        lines, _ = split_metrics(RunFolder(run.uri).read_if_there(METRICS_FILE))
        return Logged([line for line in lines if "epoch" in line and "step" in line])

    def _entry(self, run: RunSummary, logged: Logged, index: int, group: str, datasets: Mapping[str, str]) -> Entry:
        numbers = logged.newest() | run.metrics
        shown = {
            name: value for name in self.show if (value := value_of(run, name)) is not None and name not in numbers
        }
        return Entry(
            trial=run.name,
            index=index,
            status=STATUSES[run.state],
            config=group,
            settings={"method": run.method, "backbone": run.backbone}
            | ({"dataset": datasets[run.uri]} if len(set(datasets.values())) > 1 else {})
            | shown,
            dataset=datasets[run.uri],
            protocols=self.protocols(run.settings),
            seed=_seed(run.settings),
            epochs=run.epochs,
            epoch=run.epoch,
            metrics={name: value for name, value in numbers.items() if name not in COSTS},
            intervals=run.intervals,
            units={name: "%" for name in numbers if PERCENT.search(name)} | run.units,
            course={name: thinned(curve, MOST_POINTS) for name, curve in logged.curves().items()},
            costs=run.costs.numbers() | logged.costs(),
            reason=run.reason or (INTERRUPTED if run.state == "interrupted" else ""),
            path=run.uri if run.has_report else "",
        )


def _objective(runs: Sequence[RunSummary]) -> Objective:
    """Return the number that ranks unless another is asked for: the kNN that most runs have, of equally many the
    logged one, of the smallest k; else the loss."""
    counts = Counter(name for run in runs for name in run.metrics)
    names = online_names(counts)
    names += sorted(
        (name for name in counts if BENCHMARK_KNN.fullmatch(name)), key=lambda name: int(name.split("/")[1][1:])
    )
    return Objective(max(names, key=lambda name: counts[name])) if names else Objective("loss", "min")


def _datasets(runs: Sequence[RunSummary]) -> dict[str, str]:
    """Return a name for the images of each run, by its URI; other images have another name.

    Images are the same where the training images have the same fingerprint and the settings of the held-out ones are
    equal. A run that has not noted its images yet has those of a run with the same settings of the data.
    """
    noted = {_text(run.settings.get("data")): run.images for run in runs if run.images is not None}
    images = {run.uri: run.images or noted.get(_text(run.settings.get("data"))) for run in runs}

    def key(run: RunSummary) -> tuple[str, str, str]:
        data, note = run.settings.get("data"), images[run.uri]
        node = data if isinstance(data, dict) else {}
        return run.dataset, "" if note is None else note.fingerprint, _text([node.get(name) for name in HELD_OUT])

    names: dict[tuple[str, str, str], str] = {}
    for run in sorted(runs, key=lambda run: run.name):
        note = images[run.uri]
        title = run.dataset if note is None else f"{run.dataset}, {note.num_samples:,} images"
        if key(run) not in names:
            num = sum(name == title or name.startswith(f"{title} (") for name in names.values())
            names[key(run)] = f"{title} ({num + 1})" if num else title
    return {run.uri: names[key(run)] for run in runs}


def _text(tree: Any) -> str:
    return json.dumps(tree, sort_keys=True, default=str)


def _without_seed(settings: dict[str, Any]) -> str:
    """Return what is the same for runs that are seeds of one another; empty for a run without settings."""
    rest = {name: value for name, value in settings.items() if name not in OWN}
    return _text(rest) if rest else ""


def _seed(settings: dict[str, Any]) -> int:
    seed = settings.get("seed", 0)
    return seed if isinstance(seed, int) else 0
