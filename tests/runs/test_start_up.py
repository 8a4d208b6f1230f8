"""What a start leaves for later."""

import subprocess
import sys

import pytest

DRIVER = """
import sys
from raysl.benchmarks.suite.fitting import check_benchmarks
from raysl.config.load import load_config
from raysl.train.prepare import prepare
prepare(load_config("quickstart"), check_benchmarks)
late = {"torch._dynamo", "torchvision", "matplotlib", "sklearn", "sympy"}
print(sorted(late & set(sys.modules)))
"""

DATASETS = """
import sys
import raysl.data.stream.dataset
print(sorted({"torch", "numba"} & set(sys.modules)))
"""

CONTROLLER = """
import sys
import raysl.runs.failures
import raysl.runs.rank_streams
import raysl.runs.watch
print(sorted({"torch", "numba", "raysl.methods.method", "raysl.runs.worker"} & set(sys.modules)))
"""

WORKER = """
import sys
import torch
import raysl.runs.worker
from raysl.optim.adam import Adam
from raysl.optim.adam import AdamW
from raysl.optim.larc import LARC
from raysl.optim.lars import LARS
from raysl.optim.sgd import SGD
from raysl.optim.build import build_optimizer
for kind in (Adam, AdamW, LARC, LARS, SGD):
    weight = torch.nn.Parameter(torch.ones(2, 2))
    optimizer = kind([{"params": [weight], "layer_scaling": True}], kind.Config())
    (weight**2).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    optimizer.load_state_dict(optimizer.state_dict())
print(sorted({"torch._dynamo", "sympy"} & set(sys.modules)))
"""


def said(code: str, *arguments: str) -> list[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout.splitlines()


@pytest.mark.cluster
def test_a_driver_imports_no_compiler_no_plots_and_no_scikit_learn_before_training() -> None:
    assert said(DRIVER) == ["[]"]


@pytest.mark.cluster
def test_the_process_that_hands_out_datasets_imports_neither_torch_nor_numba() -> None:
    assert said(DATASETS) == ["[]"]


@pytest.mark.cluster
def test_what_raysl_adds_to_a_controller_imports_neither_torch_nor_what_trains() -> None:
    assert said(CONTROLLER) == ["[]"]


@pytest.mark.cluster
def test_a_single_worker_steps_with_every_optimizer_without_the_compiler_of_torch() -> None:
    assert said(WORKER) == ["[]"]
