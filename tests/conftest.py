"""What all tests share."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests import rank_processes
from tests.console import console as console
from tests.faults import VARIABLE, Faults, register
from tests.rank_processes import RunRanks

pytest_plugins = ["tests.tiers"]

CIFAR10 = Path(os.environ.get("RAYSL_CIFAR10", Path(__file__).parents[2] / "shared" / "data" / "cifar10"))

torch.set_num_threads(1)
gc.disable()  # until the tests are collected


def pytest_collection_finish() -> None:
    """Leave modules and collected tests out of all later garbage collections."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def cifar10() -> Path:
    """CIFAR-10 as Parquet files; tests that need it are skipped where it is absent."""
    if not CIFAR10.is_dir():
        pytest.skip(f"no CIFAR-10 at {CIFAR10}; set RAYSL_CIFAR10 to a folder of its Parquet files")
    return CIFAR10


@pytest.fixture(scope="session", autouse=True)
def _cache_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test writes below the home folder."""
    os.environ["RAYSL_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True)
def _seed() -> None:
    """What a test draws does not depend on the tests before it."""
    torch.manual_seed(0)


@pytest.fixture
def faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Faults:
    """Faults of the file system `faulty://`, without the pauses before a try."""
    register()
    faults = Faults(tmp_path)
    monkeypatch.setenv(VARIABLE, str(faults.folder))
    monkeypatch.setattr("raysl.storage.reads.FIRST_WAIT_S", 0.0)
    return faults


@pytest.fixture(autouse=True)
def _lost_locks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A lock that is lost fails the test, where it would end the process and with it all tests."""
    messages: list[str] = []
    monkeypatch.setattr("raysl.storage.owner.end_at_once", lambda code, message="": messages.append(message))
    yield
    assert messages == []


@pytest.fixture(scope="session")
def run_ranks() -> RunRanks:
    """`run_ranks(world, function, *args)`: a function on several processes, joined by gloo."""
    return rank_processes.run_ranks


@pytest.fixture(scope="session")
def _ray_of_worker() -> Iterator[None]:
    yield
    import ray

    ray.shutdown()


@pytest.fixture
def shared_ray(_ray_of_worker: None) -> None:
    """A private Ray that the tests of one worker of the suite share: it is started once."""
    from raysl.cluster.connection import connect

    connect()


@pytest.fixture
def own_ray() -> Iterator[None]:
    """Ray is not running before the test, and whatever the test started is ended behind it."""
    import ray

    ray.shutdown()
    yield
    ray.shutdown()
