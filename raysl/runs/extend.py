"""A run with other `train.epochs` than before: what that does to its learning rate, and whether the user agrees."""

import dataclasses

from raysl.checkpoint.files import Found
from raysl.config.schema import RunConfig
from raysl.errors import ConfigError
from raysl.optim.build import lr_at, peak_lr
from raysl.plan.plan import TrainPlan


def check_length(before: int, config: RunConfig, found: Found) -> str | None:
    """Refuse to make a run that has begun shorter, and to make it longer unless `train.extend` says so.

    Args:
        before: epochs that its newest checkpoint was trained for.
        config: its settings at this start.
        found: that checkpoint; before the first step, any length will do.

    Returns:
        What an extension does, in words; None where there is none.

    Raises:
        ConfigError: with the numbers.
    """
    epochs = config.train.epochs
    if found.step == 0 or epochs == before:
        return None
    if epochs < before:
        raise ConfigError(
            f"train.epochs: {before} -> {epochs} would make the run {config.name!r} shorter, which has followed the "
            f"learning rate of {before} epochs up to step {found.step}; set train.epochs={before}, or give this one "
            "another name="
        )
    text = _consequence(before, config, found)
    if not config.train.extend:
        raise ConfigError(
            f"train.epochs: {before} -> {epochs} extends the run {config.name!r}: {text}\n"
            f"set train.extend=true to go on like that, train.epochs={before} to leave it at that, or another name="
        )
    return f"extended from {before} to {epochs} epochs: {text}"


def _consequence(before: int, config: RunConfig, found: Found) -> str:
    """What happens to the learning rate of a run that is extended, with the numbers."""
    num_samples = int(found.meta["data"]["num_samples"])
    shorter = dataclasses.replace(config, train=dataclasses.replace(config.train, epochs=before))
    old, new = (TrainPlan.from_config(either, num_samples) for either in (shorter, config))
    optim, batch_size = new.optim, new.batch_size
    step, last = found.step, lr_at(optim, old.step(found.step - 1), batch_size)
    parts = [
        f"it is at step {step} of {old.total_steps}, where the learning rate was {last:.4g} (its peak: "
        f"{peak_lr(optim, batch_size):.4g})",
        f"the curve is computed anew for {new.total_steps} steps and goes on at "
        f"{lr_at(optim, new.step(step), batch_size):.4g}",
    ]
    old_warmup, new_warmup = (optim.warmup.steps(plan.total_steps, plan.epoch_len) for plan in (old, new))
    if old_warmup != new_warmup:
        again = ", so that it warms up again" if old_warmup <= step < new_warmup else ""
        parts.append(f"the warm-up of {optim.warmup} is {new_warmup} steps instead of {old_warmup}{again}")
    parts.append("other schedules that follow the share of the run that is done go back with it")
    return "; ".join(parts)
