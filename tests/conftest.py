"""What all tests share."""

import os
from pathlib import Path

import pytest
import torch

CIFAR10 = Path(os.environ.get("RAYSL_CIFAR10", Path(__file__).parents[2] / "shared" / "data" / "cifar10"))

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def cifar10() -> Path:
    """CIFAR-10 as Parquet files; tests that need it are skipped where it is absent."""
    if not CIFAR10.is_dir():
        pytest.skip(f"no CIFAR-10 at {CIFAR10}; set RAYSL_CIFAR10 to a folder of its Parquet files")
    return CIFAR10
