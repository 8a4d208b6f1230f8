"""What another number of epochs changes in a run that has begun."""

from dataclasses import replace

from raysl.checkpoint.checkpoint_folder import NewestCheckpoint
from raysl.config.schema import RunConfig
from raysl.errors import ConfigError
from raysl.optim.build import lr_at, peak_lr
from raysl.plan.plan import TrainPlan


def extension_message(config: RunConfig, checkpoint: NewestCheckpoint) -> str | None:
    """Describe how a run is extended; refuse to shorten it, or to extend it without `train.extend`.

    Returns:
        A line for the event log; None if the run is not extended, or has made no step, when any length is allowed.
    """
    epochs = config.train.epochs
    if checkpoint.step == 0 or epochs == (old_epochs := int(checkpoint.meta["epochs"])):
        return None
    if epochs < old_epochs:
        raise ConfigError(
            f"train.epochs: {old_epochs} -> {epochs} would make the run {config.name!r} shorter, which has followed "
            f"the learning rate of {old_epochs} epochs up to step {checkpoint.step}; set train.epochs={old_epochs}, "
            "or give this one another name="
        )
    text = _describe_extension(old_epochs, config, checkpoint)
    if not config.train.extend:
        raise ConfigError(
            f"train.epochs: {old_epochs} -> {epochs} extends the run {config.name!r}: {text}\n"
            f"set train.extend=true to accept these changes, train.epochs={old_epochs} to keep the length of the run, "
            "or another name="
        )
    return f"extended from {old_epochs} to {epochs} epochs: {text}"


def _describe_extension(old_epochs: int, config: RunConfig, checkpoint: NewestCheckpoint) -> str:
    """Describe how an extension changes the learning rate and other schedules."""
    num_samples = int(checkpoint.meta["data"]["num_samples"])
    old_config = replace(config, train=replace(config.train, epochs=old_epochs))
    old, new = (TrainPlan.from_config(each, num_samples) for each in (old_config, config))
    optim, batch_size, step = new.optim, new.batch_size, checkpoint.step
    # the last update had index step - 1 in the old plan; the next one has index step in the new plan
    last_lr = lr_at(optim, old.step(step - 1), batch_size)
    next_lr = lr_at(optim, new.step(step), batch_size)
    parts = [
        f"it is at step {step} of {old.total_steps}, where the learning rate was {last_lr:.4g} (its peak: "
        f"{peak_lr(optim, batch_size):.4g})",
        f"the curve is computed anew for {new.total_steps} steps and goes on at {next_lr:.4g}",
    ]
    old_warmup, new_warmup = (optim.warmup.steps(plan.total_steps, plan.epoch_len) for plan in (old, new))
    if old_warmup != new_warmup:
        repeat = ", so that it warms up again" if old_warmup <= step < new_warmup else ""
        parts.append(f"the warm-up of {optim.warmup} is {new_warmup} steps instead of {old_warmup}{repeat}")
    parts.append("all schedules based on progress also jump back, because progress is now a smaller fraction")
    return "; ".join(parts)
