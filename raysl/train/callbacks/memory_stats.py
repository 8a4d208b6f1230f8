"""Memory of the training processes and of their GPUs."""

from importlib.util import find_spec

import torch

from raysl import distributed as dist
from raysl.methods.method import StepOutput
from raysl.process.memory import most_resident, resident
from raysl.schedule import Step
from raysl.train.callbacks.callback import Callback, Run

FILE = "memory_summary.txt"


class MemoryStats(Callback):
    """Logs what memory is in use: of several workers the one with the most, in GB (1e9 bytes).

    `memory/resident_gb` and `memory/resident_peak_gb` of the process; on a GPU also `memory/allocated_gb` and
    `memory/allocated_peak_gb` of tensors, `memory/reserved_gb` of torch's cache and `memory/used_gb` of all processes
    on the card, and `gpu_utilization` in % where the package nvidia-ml-py is installed. At the end the main rank writes
    the allocator's own table to `memory_summary.txt`.

    Source: TorchMemoryStats of Detectron2, LogGpuStatsHook and LogGpuMemoryHook of VISSL.
    """

    def on_step_end(self, run: Run, step: Step, out: StepOutput) -> None:
        """See `Callback.on_step_end`."""
        if run.is_log_due(step):
            numbers = _numbers(run.state.device)
            most = -dist.all_least(-torch.tensor(list(numbers.values()), dtype=torch.float64, device=run.state.device))
            run.log(dict(zip(numbers, most.tolist(), strict=True)))

    def on_train_end(self, run: Run) -> None:
        """See `Callback.on_train_end`."""
        if run.state.device.type == "cuda" and dist.is_main():
            with run.writing() as folder:
                (folder / FILE).write_text(torch.cuda.memory_summary(run.state.device))


def _numbers(device: torch.device) -> dict[str, float]:
    num_bytes: dict[str, float] = {"resident": resident(), "resident_peak": most_resident()}
    if device.type != "cuda":
        return _in_gb(num_bytes)
    free, total = torch.cuda.mem_get_info(device)
    num_bytes |= {
        "allocated": torch.cuda.memory_allocated(device),
        "allocated_peak": torch.cuda.max_memory_allocated(device),
        "reserved": torch.cuda.memory_reserved(device),
        "used": total - free,
    }
    load = {"gpu_utilization": float(torch.cuda.utilization(device))} if find_spec("pynvml") else {}
    return _in_gb(num_bytes) | load


def _in_gb(num_bytes: dict[str, float]) -> dict[str, float]:
    return {f"memory/{name}_gb": value / 1e9 for name, value in num_bytes.items()}
