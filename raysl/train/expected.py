"""Expected results of a run (`train.expect`): their names are checked before it starts, their values at its end."""

from collections.abc import Collection

from raysl.config.schema import RunConfig, TrainConfig
from raysl.errors import ConfigError, RunFailed, did_you_mean
from raysl.methods.method import Method
from raysl.plan.plan import TrainPlan
from raysl.report.contents import is_beside
from raysl.schedule import warmup
from raysl.train.callbacks.callback import OF_LOOP
from raysl.train.callbacks.checkpoint_keeper import CheckpointKeeper
from raysl.train.callbacks.early_stop import EarlyStop
from raysl.train.callbacks.held_out import PREFIX
from raysl.train.callbacks.online_probe import HELD_OUT, TRAINED

LOGGED = (*OF_LOOP, "corrupt_images")
"""Numbers that every run logs; the last one only if there are such images, and `loss_scale` only in fp16."""


def check_expected_names(
    config: RunConfig,
    method_class: type[Method],
    measured: Collection[str],
    online: Collection[str],
    evaluated: tuple[str, ...] = (),
) -> None:
    """Refuse to expect, to stop early by, or to keep checkpoints by a number that will not be reported.

    Args:
        method_class: class of its method. If it does not declare what it logs, any name without a slash is accepted; if
            the run has callbacks, any name at all, but for one that begins like the online kNN's.
        measured: names of the numbers of its benchmarks.
        online: names of the online kNN, as it is measured during training.
        evaluated: names of the method's own measurements on held-out images.
    """
    by_method = method_class.logged_by(config.method)
    logged = {*LOGGED, *(by_method or ()), *online}
    logged |= {PREFIX + name for name in evaluated}
    logged |= {"rankme", "lidar"} if online and config.train.online_rank else set()
    logged |= {*TRAINED, HELD_OUT} if config.train.online_probe is not None else set()

    def check(setting: str, name: str, known: Collection[str]) -> None:
        is_online = name.startswith("knn_")
        is_open = by_method is None and not ("/" in name or name.startswith((PREFIX, "probe_")))
        is_open |= bool(config.callbacks)  # they do not declare what they log
        if name not in known and (is_online or not is_open):
            listed = sorted(other for other in known if not is_beside(other))
            raise ConfigError(
                f"{setting}: nothing will report {name!r}; {did_you_mean(name, known)}There will be: "
                f"{', '.join(listed)}"
            )

    for name in config.train.expect:
        check("train.expect", name, logged.union(measured))
    for key, callback in config.callbacks.items():
        if isinstance(callback, EarlyStop.Config | CheckpointKeeper.Config) and callback.metric is not None:
            check(f"callbacks.{key}.metric", callback.metric, logged)


def check_expected(config: RunConfig, metrics: dict[str, float]) -> None:
    """Raise RunFailed if a final metric of a run is missing or outside of its expected range."""
    for name, (low, high) in config.train.expect.items():
        if name not in metrics:
            hint = did_you_mean(name, metrics)
            raise RunFailed(f"train.expect: no metric {name!r}; {hint}there are: {', '.join(sorted(metrics))}")
        if not low <= metrics[name] <= high:
            raise RunFailed(f"train.expect: {name} is {metrics[name]:g}, outside [{low:g}, {high:g}]")


def end_warning(train: TrainConfig, plan: TrainPlan) -> str | None:
    """Return a warning if the epochs of a run are over before its `train.end`; else None."""
    most = train.epochs * plan.epoch_len
    if train.end is None or train.end.steps(most, plan.epoch_len) <= most:
        return None
    return f"train.end={train.end} is after the {most:,} updates of train.epochs={train.epochs}, which end the run"


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
