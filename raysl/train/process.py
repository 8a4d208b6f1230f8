"""What a process of one's own does before it trains: logging, seeds, a look at the environment (`raysl.setup`)."""

import logging
import os
from typing import Any

from raysl.config.arguments import instance
from raysl.config.schema import RunConfig
from raysl.errors import ConfigError
from raysl.process.environment import environment, environment_text, problems
from raysl.process.screen import ToStderr
from raysl.redact import Redacted

log = logging.getLogger("raysl")


class _OfSetup(ToStderr):
    """The handler that `setup` adds, known again when it is called once more."""


def setup(
    config: RunConfig | None = None,
    *,
    seed: int | None = None,
    deterministic: bool | None = None,
    level: int | str = logging.INFO,
    show_environment: bool = True,
) -> dict[str, Any]:
    """Set up logging, random numbers and kernels of this process, as Detectron2's `default_setup` does.

    raysl's log goes to stderr with the time, and in a group of several ranks with the rank: `[1/4]`. Rank 0 logs from
    `level` on, the others warnings. torch, numpy and `random` are seeded from (seed, rank), so that ranks draw
    differently. Call it after the group of processes has been joined; a second call takes the place of the first.
    `raysl.pretrain` does without it.

    Args:
        config: a run's settings, which give seed and determinism where those are left out.
        seed: of random numbers; default: that of the settings, else 0.
        deterministic: whether GPU kernels are to repeat bit for bit; default: as the settings say, else not.
        level: of the log, a number or a name such as `DEBUG`.
        show_environment: whether to log the environment, and what is wrong with it, on rank 0.

    Returns:
        The environment, see `raysl.process.environment.environment`.

    Raises:
        ConfigError: if the seed or the level is none.
    """
    from raysl import distributed as dist

    if config is not None:
        instance(config, RunConfig, "config", "settings, as raysl.load_config gives them")
    seed = (config.seed if config is not None else 0) if seed is None else seed
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise ConfigError(f"seed {seed!r} is none; give a whole number from 0 to {2**32 - 1}")
    if deterministic is None:
        deterministic = config is not None and config.train.deterministic
    _set_up_log(_level(level), dist.rank(), dist.world())
    _seed(seed, dist.rank())
    repeat_kernels(deterministic)
    found = environment()
    if show_environment and dist.is_main():
        log.info("environment:\n%s", environment_text(found))
        for problem in problems(found):
            log.warning(problem)
    return found


def repeat_kernels(is_deterministic: bool) -> None:
    """Have GPU kernels that repeat bit for bit, or those that are found to be the fastest."""
    import torch

    if is_deterministic:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = not is_deterministic and torch.cuda.is_available()


def _level(level: int | str) -> int:
    known = logging.getLevelNamesMapping()
    found = known.get(level.upper()) if isinstance(level, str) else level
    if not isinstance(found, int) or isinstance(found, bool):
        raise ConfigError(f"level {level!r} is none of the log; give one of {', '.join(known)}")
    return found


def _set_up_log(level: int, rank: int, world: int) -> None:
    for handler in [handler for handler in log.handlers if isinstance(handler, _OfSetup)]:
        log.removeHandler(handler)
    prefix = f"[{rank}/{world}] " if world > 1 else ""
    handler = _OfSetup()
    handler.setFormatter(logging.Formatter(f"%(asctime)s {prefix}%(levelname)s %(message)s", "%H:%M:%S"))
    handler.addFilter(Redacted())
    log.addHandler(handler)
    log.setLevel(level if rank == 0 else max(level, logging.WARNING))
    log.propagate = False


def _seed(seed: int, rank: int) -> None:
    from raysl.train.loop import seed_step

    seed_step(seed, 0, rank)
