"""The schedulers of sweeps by their names: when trials are judged, and by which rule."""

from raysl.sweeps.judging import Judge, above_median, best_share, bracket, halving_rungs
from raysl.sweeps.schema import SweepConfig


def judge_of(sweep: SweepConfig, epochs: int) -> Judge | None:
    """Who stops trials early; None where nobody does, or a population replaces them.

    Args:
        sweep: its scheduler, and the settings of that.
        epochs: of the longest trial.
    """
    first = halving_rungs(sweep.grace_epochs, sweep.reduction, epochs)
    if sweep.scheduler == "asha":
        return Judge(best_share(sweep.reduction), lambda index: first, sweep.early)
    if sweep.scheduler == "hyperband":
        num = len(first) + 1

        def group(index: int) -> int:
            return bracket(index, num, sweep.reduction)

        return Judge(best_share(sweep.reduction), lambda index: first[group(index) :], sweep.early, group)
    if sweep.scheduler == "median":
        rungs = [float(epoch) for epoch in range(sweep.grace_epochs, epochs, sweep.grace_epochs)]
        return Judge(above_median, lambda index: rungs, sweep.early)
    return None
