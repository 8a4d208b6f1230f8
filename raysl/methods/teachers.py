"""Reading a trained network that a method learns from, on the driver and on each worker."""

from raysl.checkpoint.backbone import Checkpoint, load_checkpoint
from raysl.errors import ConfigError
from raysl.plan.setup import Setup


def read_teacher(setup: Setup) -> Checkpoint:
    """Return the checkpoint at `method.teacher`, or the newest one of the run there.

    Raises:
        ConfigError: if it cannot be read, or its images had other channels or another normalisation.
    """
    try:
        checkpoint = load_checkpoint(setup.method.teacher)
    except ConfigError as error:
        raise ConfigError(f"method.teacher: {error}") from error
    ours, theirs = setup.config.data, checkpoint.config.data
    if theirs.channels != ours.channels:
        raise ConfigError(
            f"data.channels is {ours.channels}, and that of method.teacher {theirs.channels}; set "
            f"data.channels={theirs.channels}"
        )
    if (theirs.mean, theirs.std) != (ours.mean, ours.std):
        raise ConfigError(
            f"data.mean and data.std are {list(ours.mean)} and {list(ours.std)}, and those of method.teacher "
            f"{list(theirs.mean)} and {list(theirs.std)}; set data.mean={list(theirs.mean)} "
            f"data.std={list(theirs.std)}"
        )
    return checkpoint
