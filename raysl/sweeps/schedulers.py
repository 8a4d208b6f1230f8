"""Schedulers by name: when trials are judged, and by which rule."""

from raysl.sweeps.judging import Groups, Judge, Rungs, best_share, bracket, halving_rungs, median_rule
from raysl.sweeps.promotion import Promotion
from raysl.sweeps.schema import SweepConfig


def judge_of(sweep: SweepConfig, epochs: int) -> Judge | Promotion | None:
    """Return the judge that stops trials early; None for no scheduler and for populations."""
    first = halving_rungs(sweep.grace_epochs, sweep.reduction, epochs)
    if sweep.scheduler == "asha":
        return _halving(sweep, lambda index: first, lambda index: 0)
    if sweep.scheduler == "hyperband":
        num = len(first) + 1

        def group(index: int) -> int:
            return bracket(index, num, sweep.reduction)

        return _halving(sweep, lambda index: first[group(index) :], group)
    if sweep.scheduler == "median":
        rungs = [float(epoch) for epoch in range(sweep.grace_epochs, epochs, sweep.grace_epochs)]
        return Judge(median_rule(sweep.min_samples), lambda index: rungs, sweep.early)
    return None


def _halving(sweep: SweepConfig, rungs: Rungs, group: Groups) -> Judge | Promotion:
    if sweep.variant == "promotion":
        return Promotion(sweep.reduction, rungs, sweep.early, group)
    return Judge(best_share(sweep.reduction), rungs, sweep.early, group)
