"""What a start leaves for later."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import ray.cloudpickle
import torch

from raysl.data.stream.execution import Packed

DRIVER = """
import sys
from raysl.benchmarks.suite.run_check import check_benchmarks
from raysl.config.load import load_config
from raysl.runs.prepare import prepare
prepare(load_config("quickstart"), check_benchmarks)
late = {"torch._dynamo", "torchvision", "matplotlib", "sklearn", "sympy"}
print(sorted(late & set(sys.modules)))
"""

COORDINATOR = """
import sys
import ray.cloudpickle
packed = ray.cloudpickle.loads(open(sys.argv[1], "rb").read())
print("torch" in sys.modules)
print(packed({"number": [1, 2]})["number"])
print("torch" in sys.modules)
"""


def said(code: str, *arguments: str) -> list[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout.splitlines()


@pytest.mark.cluster
def test_a_driver_imports_no_compiler_no_plots_and_no_scikit_learn_before_training() -> None:
    assert said(DRIVER) == ["[]"]


@pytest.mark.slow
def test_a_packed_function_is_imported_where_it_is_called_and_not_before(tmp_path: Path) -> None:
    def doubled(block: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"number": (2 * torch.as_tensor(block["number"])).tolist()}

    (tmp_path / "packed").write_bytes(ray.cloudpickle.dumps(Packed(doubled)))
    assert said(COORDINATOR, str(tmp_path / "packed")) == ["False", "[2, 4]", "True"]
