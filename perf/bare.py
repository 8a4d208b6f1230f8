"""A bare run of Ray Train, a contender of `python -m perf start`: one worker, one step of torch on a small tensor.

It imports nothing of raysl, so that it starts as the script of somebody who uses Ray Train alone.
"""

import sys
from typing import Any

import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


def train(settings: dict[str, Any]) -> None:
    """Make a step, and write the file that says so."""
    from pathlib import Path

    import torch

    weight = torch.nn.Parameter(torch.ones(2, 2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    (weight**2).sum().backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    Path(settings["file"]).touch()


def main() -> None:
    """`python -P perf/bare.py FILE FOLDER`: the file appears after the step, Ray Train writes into the folder."""
    file, folder = sys.argv[1:]
    ray.init(address="local", include_dashboard=False, log_to_driver=False)
    TorchTrainer(
        train,
        train_loop_config={"file": file},
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(storage_path=folder),
    ).fit()


if __name__ == "__main__":
    main()
