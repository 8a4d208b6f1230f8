"""After which failures a run is tried again, and what it has saved by then."""

from collections.abc import Iterable

from ray.exceptions import RayTaskError

from raysl.checkpoint.checkpoint_folder import newest_whole
from raysl.errors import CodeError, ConfigError, DamagedData, StorageError
from raysl.storage.folder import Folder


def saved_step(uri: str) -> int:
    """Return the step of the newest whole checkpoint of a run; 0 without one, or while the storage fails."""
    try:
        return newest_whole(Folder(uri), ()).step
    except ConfigError:
        return 0


def own_errors(errors: Iterable[BaseException]) -> list[BaseException]:
    """Return the errors of workers, in place of those of a data task what was raised in it."""
    return [each.cause if isinstance(each, RayTaskError) else each for each in errors]


def final_cause(errors: Iterable[BaseException]) -> BaseException | None:
    """Return what a retry would meet again: an exception of code, a wrong setting, or damaged images; None without."""
    finals = (each for each in own_errors(errors) if isinstance(each, CodeError | ConfigError | DamagedData))
    return next((each for each in finals if not isinstance(each, StorageError)), None)


def is_preempted(error: BaseException) -> bool:
    """Whether a worker ended because its node was taken away at the announced time."""
    return bool(getattr(getattr(error, "health_check_failure", error), "preempted", False))
