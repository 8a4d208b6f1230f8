"""Run a function on several processes of one machine, joined by gloo."""

import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as torch_dist
import torch.multiprocessing as mp

RunRanks = Callable[..., list[Any]]
"""What the fixture `run_ranks` gives to tests: the function below."""

multiprocessing.set_forkserver_preload(["raysl.train.state", "raysl.train", "raysl.train.prepare"])  # seconds each time


def run_ranks(world: int, function: Callable[..., Any], *args: Any, timeout: float = 90.0) -> list[Any]:
    """What `function(*args)` gives on each rank of `world` fresh processes, in rank order.

    The processes are fresh: `function` must sit at the top level of a module, and its arguments and result be
    picklable. An exception on any rank ends all and is raised here with its traceback.

    Raises:
        TimeoutError: if the ranks are not done after `timeout` seconds.
    """
    with tempfile.TemporaryDirectory() as folder:
        given = (world, folder, dict(os.environ), function, args)
        context = mp.start_processes(_on_rank, given, nprocs=world, join=False, start_method="forkserver")
        deadline = time.monotonic() + timeout
        try:
            while not context.join(timeout=1.0):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{function.__name__} on {world} ranks took longer than {timeout:g} s")
        finally:
            for process in context.processes:
                process.kill()
                process.join()
        return [torch.load(Path(folder, f"{rank}.pt"), weights_only=False) for rank in range(world)]


def _on_rank(
    rank: int,
    world: int,
    folder: str,
    environment: dict[str, str],
    function: Callable[..., Any],
    args: tuple[Any, ...],
) -> None:
    os.environ.clear()
    os.environ.update(environment)  # the server that forks has that of its own start
    torch.set_num_threads(1)
    torch_dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world)
    try:
        torch.save(function(*args), Path(folder, f"{rank}.pt"))
        torch_dist.barrier()
    finally:
        torch_dist.destroy_process_group()
