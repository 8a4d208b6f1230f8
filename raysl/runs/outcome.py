"""How training ended. Ray Train's controller reads it too, so that this module imports nothing that trains."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    """How training ended; rank 0 returns it to the driver.

    Args:
        failure: why the run failed, if a new attempt would fail in the same way.
        is_input_wrong: whether the user's settings are the reason.
        ended: why a callback ended the run for good before its last step, or None.
    """

    step: int
    failure: str | None = None
    is_input_wrong: bool = False
    ended: str | None = None
