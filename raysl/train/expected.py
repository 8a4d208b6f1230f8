"""What a run is expected to come to: which of it can be known before it starts, and whether it did."""

import difflib

from raysl.config.schema import RunConfig
from raysl.errors import ConfigError, RunFailed
from raysl.methods.method import Method
from raysl.train.plan import TrainPlan

LOGGED = ("step", "epoch", "loss", "lr", "images_per_s", "step_s", "data_wait", "memory_gb", "corrupt_images")
"""What every run logs; the last one where there are such images."""


def check_expected_names(
    config: RunConfig, method_class: type[Method], measured: set[str], has_online_knn: bool
) -> None:
    """Refuse an expectation of a number that nothing will report.

    Args:
        config: the run's settings.
        method_class: of its method; where it does not say what it logs, any name without a slash may be one of those.
        measured: names that its benchmarks will give.
        has_online_knn: whether the kNN accuracy is measured during training.

    Raises:
        ConfigError: with the names that there will be.
    """
    logged = {*LOGGED, *(method_class.logged or ()), *(["knn_top1"] if has_online_knn else [])}
    for name in config.train.expect:
        is_open = method_class.logged is None and "/" not in name and name != "knn_top1"
        if name not in logged | measured and not is_open:
            near = difflib.get_close_matches(name, logged | measured, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            known = [*sorted(logged), *sorted(other for other in measured if other.count("/") == 1)]
            raise ConfigError(f"train.expect: nothing will report {name!r}; {hint}There will be: {', '.join(known)}")


def check_expected(config: RunConfig, metrics: dict[str, float]) -> None:
    """Compare what a run came to with what was expected of it.

    Raises:
        RunFailed: if a number is missing or out of its range.
    """
    for name, (low, high) in config.train.expect.items():
        if name not in metrics:
            raise RunFailed(f"train.expect: no metric {name!r}; there are: {', '.join(sorted(metrics))}")
        if not low <= metrics[name] <= high:
            raise RunFailed(f"train.expect: {name} is {metrics[name]:g}, outside [{low:g}, {high:g}]")


def warm_up_warning(plan: TrainPlan) -> str | None:
    """What to say of a warm-up that is longer than the run, in which the learning rate never gets to its peak."""
    num_warmup = plan.optim.warmup.steps(plan.total_steps, plan.epoch_len)
    if num_warmup <= plan.total_steps:
        return None
    return (
        f"optim.warmup={plan.optim.warmup} is {num_warmup:,} steps, longer than the run of {plan.total_steps:,}: the "
        f"learning rate ends at {plan.total_steps / num_warmup:.0%} of its peak; optim.warmup=10% fits any run"
    )
