"""Expected results of a run (`train.expect`): their names are checked before it starts, their values at its end."""

import difflib
from collections.abc import Collection

from raysl.config.schema import RunConfig
from raysl.errors import ConfigError, RunFailed
from raysl.methods.method import Method
from raysl.plan.plan import TrainPlan
from raysl.schedule import warmup
from raysl.train.callbacks.held_out import PREFIX
from raysl.train.callbacks.online_probe import HELD_OUT, TRAINED

LOGGED = ("step", "epoch", "loss", "lr", "images_per_s", "step_s", "data_wait", "memory_gb", "corrupt_images")
"""Numbers that every run logs; the last one only if there are such images."""


def check_expected_names(
    config: RunConfig,
    method_class: type[Method],
    measured: Collection[str],
    has_online_knn: bool,
    evaluated: tuple[str, ...] = (),
) -> None:
    """Refuse an expectation of a number that will not be reported.

    Args:
        config: the run's settings.
        method_class: class of its method. If it does not declare what it logs, any name without a slash is accepted; if
            the run has callbacks, any name at all.
        measured: names of the numbers of its benchmarks.
        has_online_knn: whether the kNN accuracy is measured during training.
        evaluated: names of the method's own measurements on held-out images.

    Raises:
        ConfigError: with the names that will be reported.
    """
    by_method = method_class.logged_by(config.method)
    logged = {*LOGGED, *(by_method or ()), *(["knn_top1"] if has_online_knn else [])}
    logged |= {PREFIX + name for name in evaluated}
    logged |= {"rankme", "lidar"} if has_online_knn and config.train.online_rank else set()
    logged |= {*TRAINED, HELD_OUT} if config.train.online_probe is not None else set()
    known = logged.union(measured)
    for name in config.train.expect:
        is_open = by_method is None and not ("/" in name or name.startswith((PREFIX, "probe_")) or name == "knn_top1")
        is_open |= bool(config.callbacks)  # they do not declare what they log
        if name not in known and not is_open:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            listed = [*sorted(logged), *sorted(other for other in measured if other.count("/") == 1)]
            raise ConfigError(f"train.expect: nothing will report {name!r}; {hint}There will be: {', '.join(listed)}")


def check_expected(config: RunConfig, metrics: dict[str, float]) -> None:
    """Compare the final metrics of a run with the expected ranges.

    Raises:
        RunFailed: if a number is missing or out of its range.
    """
    for name, (low, high) in config.train.expect.items():
        if name not in metrics:
            raise RunFailed(f"train.expect: no metric {name!r}; there are: {', '.join(sorted(metrics))}")
        if not low <= metrics[name] <= high:
            raise RunFailed(f"train.expect: {name} is {metrics[name]:g}, outside [{low:g}, {high:g}]")


def course_warning(plan: TrainPlan) -> str | None:
    """Return a warning if the learning rate warms up, or steps down, after the end of the run; else None."""
    optim, total = plan.optim, plan.total_steps
    late = [str(point) for point in optim.decay_at if point.steps(total, plan.epoch_len) >= total]
    if late:
        return (
            f"optim.decay_at={','.join(late)} is not reached in the run of {total:,} steps; optim.decay_at=60% would be"
        )
    num_warmup = optim.warmup.steps(total, plan.epoch_len)
    if num_warmup <= total or optim.phases:
        return None
    share = warmup(plan.step(total - 1), num_warmup, optim.warmup_start)
    return (
        f"optim.warmup={optim.warmup} is {num_warmup:,} steps, longer than the run of {total:,}: the "
        f"learning rate ends at {share:.0%} of its peak; optim.warmup=10% fits any run"
    )
