"""Commands beside `raysl pretrain` that are killed: given again, they end with what they would have made."""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from raysl.data.ingest.ingest import LEFT_BEHIND_S
from raysl.leaderboard.leaderboard import Leaderboard
from raysl.storage.folder import Folder
from tests.chaos import gate
from tests.chaos.bucket import ENVIRONMENT, Bucket
from tests.chaos.conftest import Calm, Record
from tests.chaos.harness import GATED, NOTES, Command, Row, Workplace, readable
from tests.runs.runs import SMALL

pytestmark = pytest.mark.slow


@dataclass
class Killed:
    """A command that reads the digits, and is killed in one of its reads.

    Args:
        notes: folder.
        workplace: of its processes.
    """

    notes: Path
    workplace: Workplace = field(default_factory=lambda: Workplace({}))

    def data(self, hold_read: int) -> list[str]:
        """Settings of the digits, whose reads wait from one on."""
        return [*(word.replace(NOTES, str(self.notes)) for word in GATED), f"data.hold_read={hold_read}"]

    def is_held(self) -> bool:
        """Whether a data task waits in a read."""
        return bool(list(self.notes.glob(f"{gate.HELD}*")))

    def start(self, words: Sequence[str]) -> Command:
        return Command(words, self.workplace.environment)

    def killed_and_again(self, fault: str, words: Sequence[str], is_time: Callable[[], bool]) -> Row:
        """Kill it when it is time, and give the command again.

        Args:
            fault: in words.
            words: of the command.
            is_time: whether to kill it.
        """
        first = self.start(words)
        first.until(is_time)
        first.kill()
        hit_at = time.time()
        (self.notes / gate.GO).touch()
        again = self.start(words)
        again.ended()
        sees = readable([line for _, line in again.lines if line and not line[0].isspace()], str(self.notes.parent))
        return Row(fault, sees, time.time() - hit_at, None, None, self.workplace.left())


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[Killed]:
    (tmp_path / "notes").mkdir()
    killed = Killed(tmp_path / "notes")
    yield killed
    killed.workplace.close()


def tables(folder: Path) -> dict[str, object]:
    """Rows of all Parquet files, by name."""
    return {path.name: pq.read_table(path).to_pydict() for path in sorted(folder.rglob("*.parquet"))}


def test_a_killed_ingest_goes_on(killed: Killed, tmp_path: Path, record: Record) -> None:
    words = ["ingest", "quickstart", *killed.data(5), "--rows-per-file=100", "--rows-per-group=100"]
    out = tmp_path / "out"
    row = killed.killed_and_again(
        "SIGKILL of an ingest, whose `.part` files go with a start ten minutes later",
        [*words, f"--out={out}"],
        lambda: killed.is_held() and bool(tables(out)),
    )
    killed.start([*words, f"--out={tmp_path / 'calm'}"]).ended()
    for part in out.rglob("*.part"):
        os.utime(part, (time.time() - LEFT_BEHIND_S - 60,) * 2)
    killed.start([*words, f"--out={out}"]).ended()
    left = [str(path) for path in out.rglob("*.part")]
    assert tables(out) == tables(tmp_path / "calm")
    record(replace(row, same_bits=True, left=[*row.left, *left]))


def test_a_killed_extraction_is_made_again(killed: Killed, calm: Calm, tmp_path: Path, record: Record) -> None:
    words = ["extract", f"--checkpoint={calm()}", "--split=train", *killed.data(2), "--trust-code"]
    out = tmp_path / "out"
    row = killed.killed_and_again("SIGKILL of an extraction", [*words, f"--out={out}"], killed.is_held)
    killed.start([*words, f"--out={tmp_path / 'calm'}"]).ended()
    record(replace(row, same_bits=tables(out) == tables(tmp_path / "calm")))


def test_a_killed_benchmark_measures_what_is_missing(
    killed: Killed, calm: Calm, tmp_path: Path, record: Record
) -> None:
    runs = [tmp_path / name for name in ("one", "calm")]
    for run in runs:
        shutil.copytree(calm(), run)
    words = ["knn", *killed.data(2), "--trust-code"]
    row = killed.killed_and_again(
        "SIGKILL of a benchmark", ["benchmark", f"--checkpoint={runs[0]}", *words], killed.is_held
    )
    killed.start(["benchmark", f"--checkpoint={runs[1]}", *words]).ended()
    record(replace(row, same_bits=measured(runs[0]) == measured(runs[1]) != {}))


def measured(run: Path) -> dict[str, object]:
    """Metrics of the benchmarks of a run."""
    reports = sorted(run.rglob("report.json"))
    return {str(path.relative_to(run)): json.loads(path.read_text())["metrics"] for path in reports}


def test_a_killed_export_is_made_again(
    bucket: Bucket, killed: Killed, calm: Calm, tmp_path: Path, record: Record
) -> None:
    killed.workplace.environment |= ENVIRONMENT
    out = bucket.storage.replace("/runs?", "/export?")
    words = ["convert", str(calm()), "--to=safetensors"]
    bucket.held = r"(PUT|POST) .*/README\.md"
    row = killed.killed_and_again("SIGKILL of an export", [*words, f"--out={out}"], lambda: bucket.num_held > 0)
    killed.start([*words, f"--out={tmp_path / 'calm'}"]).ended()
    again, whole = Folder(out), Folder(str(tmp_path / "calm"))
    files, expected = ({name: folder.read(name) for name in folder.names()} for folder in (again, whole))
    assert files == expected != {}
    record(replace(row, same_bits=True))


SPACE = "trials: 2\nscheduler: none\nconcurrent: 1\nspace:\n  optim.lr: {loguniform: [0.01, 2.0]}\n"


def test_a_killed_sweep_goes_on(killed: Killed, tmp_path: Path, record: Record) -> None:
    (tmp_path / "search.yaml").write_text(SPACE)
    settings = [word for word in SMALL if not word.startswith(("train.online", "train.epochs", "train.checkpoint"))]
    words = ["sweep", str(tmp_path / "search.yaml"), *settings, "train.checkpoint_every=1ep", "train.epochs=2"]
    row = killed.killed_and_again(
        "SIGKILL of a sweep",
        [*words, f"storage={tmp_path / 'killed'}", "name=s"],
        lambda: bool(list(tmp_path.glob("killed/s/trial_*/checkpoint_*/meta.json"))),
    )
    killed.start([*words, f"storage={tmp_path / 'calm'}", "name=s"]).ended()
    record(replace(row, same_bits=courses(tmp_path / "killed") == courses(tmp_path / "calm")))


def courses(storage: Path) -> list[object]:
    """What each trial of a sweep has logged, less its seconds."""
    entries = Leaderboard.load(str(storage / "s")).entries
    return [(entry.trial, entry.settings, {**entry.course, "seconds": None}) for entry in entries]
