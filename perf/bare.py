"""A bare run of Ray Train, a contender of `python -m perf start`: one worker, one step of torch on a dataset.

It imports nothing of raysl, so that it starts as the script of somebody who uses Ray Train alone.
"""

import sys
from typing import Any

import ray
import ray.data
import ray.train
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


def train(settings: dict[str, Any]) -> None:
    """Make a step, and write the file that says so."""
    from pathlib import Path

    import torch

    batch = next(iter(ray.train.get_dataset_shard("train").iter_torch_batches(batch_size=32)))["data"]
    weight = torch.nn.Parameter(torch.ones(8, 8))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    (batch @ weight).sum().backward()
    optimizer.step()
    Path(settings["file"]).touch()


def scale(batch: dict[str, Any]) -> dict[str, Any]:
    """Stand for what turns stored images into batches."""
    return {"data": (batch["data"] / 255).astype("float32")}


if __name__ == "__main__":
    # `python -P perf/bare.py FILE FOLDER`: the file appears after the step, Ray Train writes into the folder.
    file, folder = sys.argv[1:]
    ray.init(address="local", include_dashboard=False, log_to_driver=False)
    TorchTrainer(
        train,
        train_loop_config={"file": file},
        datasets={"train": ray.data.range_tensor(256, shape=(8, 8)).map_batches(scale)},
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(storage_path=folder),
    ).fit()
