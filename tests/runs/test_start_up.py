"""What a start leaves for later."""

import subprocess
import sys

import pytest

DRIVER = """
import sys
from raysl.benchmarks.suite.run_check import check_benchmarks
from raysl.config.load import load_config
from raysl.runs.prepare import prepare
prepare(load_config("quickstart"), check_benchmarks)
late = {"torch._dynamo", "torchvision", "matplotlib", "sklearn", "sympy"}
print(sorted(late & set(sys.modules)))
"""

EXECUTOR = """
import sys
import raysl.data.stream.execution
print(sorted({"torch", "numba", "pandas", "ray.data"} & set(sys.modules)))
"""


def said(code: str, *arguments: str) -> list[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout.splitlines()


@pytest.mark.cluster
def test_a_driver_imports_no_compiler_no_plots_and_no_scikit_learn_before_training() -> None:
    assert said(DRIVER) == ["[]"]


@pytest.mark.cluster
def test_an_executor_of_data_tasks_imports_neither_torch_nor_numba() -> None:
    assert said(EXECUTOR) == ["[]"]
