"""Files of tensors and primitives, which are read without running code in them."""

import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch

from raysl.errors import ConfigError
from raysl.storage.records import check_types


def save_tensors(tensors: dict[str, Any], path: Path) -> None:
    """Write tensors and primitives to a file.

    Raises:
        OSError: if the disk is full or fails.
    """
    try:
        with path.open("wb") as file:
            torch.save(tensors, file)
    except RuntimeError as error:  # torch's writer hides the error of the system
        if isinstance(error.__context__, OSError):
            raise error.__context__ from error
        raise


def load_tensors(path: Path, is_mapped: bool = False) -> dict[str, Any]:
    """Read a file of tensors and primitives, on the CPU.

    Args:
        is_mapped: whether tensors are read from the file only when they are used, so that memory holds one at a time.
            They must be copied before the file changes.

    Raises:
        ConfigError: if it cannot be read, or holds anything else, such as a pickle that would run code.
    """
    if path.exists() and not zipfile.is_zipfile(path):  # a plain pickle, or half a file
        raise ConfigError(
            f"refused {path}: it is not what raysl writes, or it was cut off; go back to an older checkpoint"
        )
    try:
        loaded: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True, mmap=is_mapped)
    except pickle.UnpicklingError as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"refused {path}: it holds more than tensors and primitives ({reason})") from error
    except (OSError, RuntimeError, EOFError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    return check_types(loaded, str(path))
