"""A benchmark that trains, on workers of Ray Train: where there are GPUs, and again where one was lost."""

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import ray
import ray.train
import ray.train.torch
import torch
from ray.train import FailureConfig, ScalingConfig
from ray.train.v2.api.exceptions import TrainingFailedError

from raysl import distributed as dist
from raysl.benchmarks.benchmark import Context, Findings
from raysl.cluster.connection import cluster_resources, connect
from raysl.cluster.resources import worker_shape
from raysl.config.schema import TrainConfig
from raysl.errors import ConfigError, RunFailed
from raysl.runs.trainer import Trainer

MAX_FAILURES = 3
"""Losses of a worker that are repaired; the training goes on from its newest checkpoint."""

MeasureOn = Callable[[Context, torch.device], Findings]
"""Measures on a device as one of the ranks that are there; what the main one gives counts."""


@dataclass(frozen=True)
class Outcome:
    """How it ended, as rank 0 tells the driver: what no new attempt would cure is no exception there.

    Args:
        found: what was measured; None where it failed.
        error: why it failed.
    """

    found: Findings | None
    error: ConfigError | RunFailed | None = None


def on_workers(measure_on: MeasureOn, context: Context, workers: int | None) -> Findings:
    """Measure on training processes of their own, on GPUs where the cluster has some.

    Args:
        measure_on: what each of them does; is pickled.
        context: of the benchmark.
        workers: how many; default: as many as the checkpoint's run had.

    Raises:
        ConfigError: if the cluster can never hold so many workers, or as `measure_on`.
        RunFailed: if workers were lost too often, or as `measure_on`.
    """
    connect()
    own = context.checkpoint.config.train
    num = workers or own.workers
    train = TrainConfig(
        workers=num,
        device=own.device,
        cpus_per_worker=own.cpus_per_worker,
        gpus_per_worker=own.gpus_per_worker if num == 1 else 1.0,
    )
    shape = worker_shape(train, cluster_resources())
    lean = replace(context, images={}, train=None, test=None)
    with tempfile.TemporaryDirectory(prefix="raysl_ray_") as notes:  # of Ray's own
        trainer = Trainer(
            _work,
            train_loop_config={"job": ray.put((measure_on, lean, own.threads))},
            scaling_config=ScalingConfig(
                num_workers=train.workers, use_gpu=shape.device == "cuda", resources_per_worker=shape.resources
            ),
            run_config=ray.train.RunConfig(
                name="benchmark", storage_path=notes, failure_config=FailureConfig(max_failures=MAX_FAILURES)
            ),
        )
        try:
            outcome: Outcome = trainer.fit().return_value
        except KeyboardInterrupt:
            trainer.abort()
            raise
        except TrainingFailedError as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise RunFailed(f"{lines[-1]}; the same command goes on from the last checkpoint") from error
    if outcome.error is not None:
        raise outcome.error
    assert outcome.found is not None
    return outcome.found


def _work(settings: dict[str, Any]) -> Outcome:
    """What each worker does."""
    measure_on, context, threads = ray.get(settings["job"])
    device = ray.train.torch.get_device()
    share = max(1, (os.cpu_count() or 1) // ray.train.get_context().get_local_world_size())
    torch.set_num_threads(threads or (share if device.type == "cpu" else min(8, share)))
    try:
        return Outcome(measure_on(context, device))
    except (ConfigError, RunFailed) as error:
        if dist.world() > 1:  # other ranks may wait for this one
            raise
        return Outcome(None, error)
