"""Code of raysl is told from that of others by the folder of the package."""

from pathlib import Path

import pytest
import torch

from raysl.train import loop
from tests.frames import path_in_raysl


@pytest.mark.parametrize(
    ("file", "path"),
    [
        ("raysl/train/loop.py", "train/loop.py"),
        (".venv/lib/python3.11/site-packages/torch/nn/functional.py", None),
        ("raysl/.venv/lib/python3.11/site-packages/torch/nn/functional.py", None),
        ("tests/train/test_no_wait.py", None),
    ],
)
def test_code_of_an_environment_in_a_clone_called_raysl_is_not_of_raysl(file: str, path: str | None) -> None:
    assert path_in_raysl(f"/home/raysl/{file}", Path("/home/raysl/raysl")) == path


def test_code_that_runs_here_is_told_apart() -> None:
    assert path_in_raysl(loop.fit.__code__.co_filename) == "train/loop.py"
    assert path_in_raysl(torch.nn.functional.normalize.__code__.co_filename) is None
    assert path_in_raysl(__file__) is None
