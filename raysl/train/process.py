"""Setting up a process that trains without `raysl.pretrain`: logging, seeds, environment (`raysl.setup`)."""

import logging
import os
import threading
from importlib import import_module
from typing import Any

from raysl.config.arguments import instance
from raysl.config.schema import RunConfig, TrainConfig
from raysl.errors import ConfigError, log
from raysl.process.environment import environment, environment_text, problems
from raysl.process.screen import ToStderr
from raysl.redact import Redacted


class _SetupHandler(ToStderr):
    """The handler that `setup` adds; its class tells it from others at the next call."""


def setup(
    config: RunConfig | None = None,
    *,
    seed: int | None = None,
    deterministic: bool | None = None,
    level: int | str = logging.INFO,
    show_environment: bool = True,
) -> dict[str, Any]:
    """Set up logging, random numbers and kernels of this process, as Detectron2's `default_setup` does.

    raysl's log goes to stderr with the time and, with several ranks, the rank: `[1/4]`. Rank 0 logs from `level` on,
    the others warnings. torch, numpy and `random` are seeded from (seed, rank), so that ranks draw different numbers.
    Call it after the process has joined its group; a second call replaces the first. `raysl.pretrain` does not need it.

    >>> sorted(setup(seed=1, show_environment=False))[:4]
    ['cpu', 'devices', 'disk', 'driver']

    Args:
        config: a run's settings, the source of the defaults of `seed` and `deterministic`.
        seed: seed of random numbers; default: that of the settings, or 0.
        deterministic: whether GPU kernels repeat bit for bit; default: that of the settings, or False.
        level: level of the log, a number or a name such as `DEBUG`.
        show_environment: whether rank 0 logs the environment and its problems.

    Returns:
        The environment, see `raysl.process.environment.environment`.

    Raises:
        ConfigError: if the seed or the level is not valid.
    """
    from raysl import distributed as dist
    from raysl.train.loop import seed_step

    if config is not None:
        instance(config, RunConfig, "config", "settings, as raysl.load_config gives them")
    seed = (config.seed if config is not None else 0) if seed is None else seed
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise ConfigError(f"seed {seed!r} is not a seed; give a whole number from 0 to {2**32 - 1}")
    if deterministic is None:
        deterministic = config is not None and config.train.deterministic
    _set_up_log(_level(level), dist.rank(), dist.world())
    seed_step(seed, 0, dist.rank())
    repeat_kernels(deterministic)
    facts = environment()
    if show_environment and dist.is_main():
        log.info("environment:\n%s", environment_text(facts))
        for problem in problems(facts):
            log.warning(problem)
    return facts


def repeat_kernels(is_deterministic: bool) -> None:
    """Choose GPU kernels that repeat bit for bit, or the fastest ones."""
    import torch

    if is_deterministic:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = not is_deterministic and torch.cuda.is_available()


def import_compiler_meanwhile(train: TrainConfig, world: int) -> threading.Thread | None:
    """Import torch's compiler in a thread, while this rank finds its folder and waits for others, if it will be needed.

    `DistributedDataParallel` needs it too. It takes more than a second, which a run of one worker saves.
    """
    if world == 1 and not train.compile:
        return None
    thread = threading.Thread(target=import_module, args=("torch._dynamo",), name="raysl-compiler", daemon=True)
    thread.start()
    return thread


def _level(level: int | str) -> int:
    known = logging.getLevelNamesMapping()
    number = known.get(level.upper()) if isinstance(level, str) else level
    if not isinstance(number, int) or isinstance(number, bool):
        raise ConfigError(f"level {level!r} is not a level of the log; give one of {', '.join(known)}")
    return number


def _set_up_log(level: int, rank: int, world: int) -> None:
    for handler in [handler for handler in log.handlers if isinstance(handler, _SetupHandler)]:
        log.removeHandler(handler)
    prefix = f"[{rank}/{world}] " if world > 1 else ""
    handler = _SetupHandler()
    handler.setFormatter(logging.Formatter(f"%(asctime)s {prefix}%(levelname)s %(message)s", "%H:%M:%S"))
    handler.addFilter(Redacted())
    log.addHandler(handler)
    log.setLevel(level if rank == 0 else max(level, logging.WARNING))
    log.propagate = False
