"""Undisturbed runs to compare with, and the recorder of rows."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.bucket import ENVIRONMENT, Bucket
from tests.chaos.cluster import Cluster
from tests.chaos.harness import Disturbed, Row, keep

Calm = Callable[..., Path]
Record = Callable[[Row], None]
Disturb = Callable[..., Disturbed]
Join = Callable[..., Cluster]


@pytest.fixture(scope="session")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Calm:
    """`calm(*words)`: the folder of an undisturbed run of that shape; each shape is run once."""
    folders: dict[tuple[str, ...], Path] = {}

    def run(*words: str) -> Path:
        if words not in folders:
            undisturbed = Disturbed(tmp_path_factory.mktemp("calm"), *words, hold=0)
            try:
                undisturbed.start().ended()
            finally:
                undisturbed.workplace.close()
            folders[words] = Path(undisturbed.run.path)
        return folders[words]

    return run


@pytest.fixture
def disturb(tmp_path: Path) -> Iterator[Disturb]:
    """`disturb(*words)`: a run that waits for its fault; what it leaves is ended behind the test."""
    runs: list[Disturbed] = []

    def make(*words: str, **options: object) -> Disturbed:
        runs.append(Disturbed(tmp_path / f"disturbed-{len(runs)}", *words, **options))
        return runs[-1]

    yield make
    for run in runs:
        run.workplace.close()


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Record:
    """`record(row)`: keep a row, and fail where bits differ or something was left behind."""

    def check(row: Row) -> None:
        code = request.function.__code__
        keep(replace(row, file=Path(code.co_filename).name, line=code.co_firstlineno), request.node.name)
        assert row.same_bits is not False, f"other bits than an undisturbed run: {row}"
        assert not row.left, f"left behind: {row}"

    return check


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """A bucket that fails on demand; this process and those that it starts have its keys."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    bucket = Bucket()
    yield bucket
    bucket.close()


@pytest.fixture
def join(tmp_path: Path) -> Iterator[Join]:
    """`join(run, *words)`: a cluster for a run, with the words of the `ray start` of its head."""
    clusters: list[Cluster] = []

    def make(run: Disturbed, *words: str, is_watched: bool = True) -> Cluster:
        clusters.append(Cluster(tmp_path, run.workplace, *words, is_watched=is_watched))
        return clusters[-1]

    yield make
    for cluster in clusters:
        cluster.close()
