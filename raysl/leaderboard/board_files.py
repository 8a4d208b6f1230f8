"""The files of a leaderboard, written while its sweep runs, and those of a comparison of checkpoints."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from raysl.errors import ConfigError, log
from raysl.leaderboard.best import RUN_FILE, BestRun, best_runs, folder_of, runnable
from raysl.leaderboard.choice import Choice
from raysl.leaderboard.comparison import compare
from raysl.leaderboard.entry import Entry
from raysl.leaderboard.leaderboard import CSV, JSON, PAGE, TEX, Leaderboard
from raysl.leaderboard.page.axes import Axis
from raysl.leaderboard.page.comparison import comparison_page
from raysl.leaderboard.page.importance import Importance, importance
from raysl.leaderboard.page.leaderboard_page import Extras, neighbours_of, page
from raysl.report.contents import RunReport
from raysl.storage.folder import Folder, outlast


@dataclass
class LeaderboardFiles:
    """Writes the files of one sweep again and again, each only where it has changed."""

    folder: Folder
    _written: dict[str, int] = field(default_factory=dict, init=False)
    _kept: dict[tuple[str, str, str], str] = field(default_factory=dict, init=False)
    _extras: Extras = field(default_factory=Extras, init=False)
    _learned: dict[int, Importance | None] = field(default_factory=dict, init=False)

    def write(self, board: Leaderboard) -> None:
        """Write `leaderboard.csv`, `.json`, `.tex` and `.html`, and `best_1.yaml` to `best_3.yaml`.

        It takes a tenth of a second of a small sweep and some seconds of one of a thousand trials: the caller leaves
        pauses that fit.
        """
        self._put(CSV, board.csv())
        self._put(JSON, board.json())
        self._put(TEX, board.latex())
        best = best_runs(board)
        self._extras.explain = self._explained
        self._extras.configs = {one.file: text for one in best if (text := self._config(one, board))}
        self._extras.neighbours = {
            one.run.trial: picture for one in best if (picture := self._of_run(one.run, "report.html"))
        }
        for name, text in self._extras.configs.items():
            self._put(name, text)
        self._put(PAGE, page(board, self._extras))

    def _config(self, best: BestRun, board: Leaderboard) -> str:
        text = self._of_run(best.run, RUN_FILE)
        return runnable(best, text, board) if text else ""

    def _of_run(self, run: Entry, name: str) -> str:
        """Return the text of a run's file, or the neighbours' picture of its page; empty while the file is missing."""
        # a file is read again once the run's status has changed, since it may have been written anew
        key = (run.trial, name, run.status)
        if key not in self._kept and run.path:
            try:
                content = folder_of(run, self.folder).read_if_there(name).decode(errors="replace")
            except ConfigError as error:
                log.warning("%s of %s is left out of the leaderboard: %s", name, run.trial, error)
                return ""
            text = neighbours_of(content) if name == "report.html" else content
            if text:
                self._kept[key] = text
        return self._kept.get(key, "")

    def _explained(self, rows: list[Choice], scales: list[Axis], metric: str) -> Importance | None:
        """Return what `importance` returns, computed again only when a number has changed."""
        key = hash(tuple((row.value(metric), *(axis.position(row) for axis in scales)) for row in rows))
        if key not in self._learned:
            self._learned[key] = importance(rows, scales, metric)
        return self._learned[key]

    def _put(self, name: str, text: str) -> None:
        content = text.encode(errors="replace")
        if self._written.get(name) != hash(content):
            self.folder.write(name, content)
            self._written[name] = hash(content)


def write(board: Leaderboard, folder: Folder) -> None:
    """Write all files of a leaderboard into its sweep's folder; one that writes often keeps a `LeaderboardFiles`."""
    LeaderboardFiles(folder).write(board)


def write_comparison(reports: Sequence[RunReport], folder: Folder) -> str:
    """Write `comparison.html`, `.json`, `.csv` and `.tex` into a folder, which is made if need be.

    Returns:
        The URI of the page.
    """
    comparison = compare(reports)
    texts = {
        "json": comparison.json(),
        "csv": comparison.csv(),
        "tex": comparison.latex(),
        "html": comparison_page(comparison),
    }
    outlast(folder.make)
    for kind, text in texts.items():
        outlast(partial(folder.write, f"comparison.{kind}", text.encode("utf-8", errors="replace")))
    return folder.uri_of("comparison.html")
