"""What methods on pairs of views refuse before a process starts."""

from raysl.errors import ConfigError
from raysl.methods.setup import Setup


def check_two_views(setup: Setup, why: str) -> None:
    """Refuse other numbers of views than two.

    Args:
        setup: of the run.
        why: what the method does with the two, as a sentence without its end.

    Raises:
        ConfigError: with the number.
    """
    num = setup.method.views.num
    if num != 2:
        raise ConfigError(f"method.views.num is {num}; {why}: set it to 2")


def check_batch(setup: Setup, why: str) -> None:
    """Refuse batches of a single image; the arguments are those of `check_two_views`.

    Raises:
        ConfigError: with the number.
    """
    batch_size = setup.plan.batch_size
    if batch_size < 2:
        raise ConfigError(f"train.batch_size is {batch_size}; {why}: at least 2, better 256")


def check_queue(setup: Setup, what: str) -> None:
    """Refuse a queue that no batch fits in.

    Args:
        setup: of the run.
        what: becomes of its rows too early, such as "keys would leave before a query met them".

    Raises:
        ConfigError: with the numbers.
    """
    queue_size, batch_size = setup.method.queue_size, setup.plan.batch_size
    if queue_size < batch_size:
        raise ConfigError(
            f"method.queue_size is {queue_size} and train.batch_size {batch_size}: {what}; give {batch_size} or more, "
            "better 16 batches"
        )
