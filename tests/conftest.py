"""What all tests share."""

import os
from pathlib import Path

import pytest
import torch

from tests.faults import VARIABLE, Faults, register

CIFAR10 = Path(os.environ.get("RAYSL_CIFAR10", Path(__file__).parents[2] / "shared" / "data" / "cifar10"))

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def cifar10() -> Path:
    """CIFAR-10 as Parquet files; tests that need it are skipped where it is absent."""
    if not CIFAR10.is_dir():
        pytest.skip(f"no CIFAR-10 at {CIFAR10}; set RAYSL_CIFAR10 to a folder of its Parquet files")
    return CIFAR10


@pytest.fixture
def faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Faults:
    """Faults of the file system `faulty://`, without the pauses before a try."""
    register()
    faults = Faults(tmp_path)
    monkeypatch.setenv(VARIABLE, str(faults.folder))
    monkeypatch.setattr("raysl.storage.reads.FIRST_WAIT_S", 0.0)
    return faults
