"""Which code in a stack is that of raysl: a clone may be called like the package, and hold the environment as well."""

from functools import cache
from pathlib import Path

import raysl

PACKAGE = Path(raysl.__file__).parent


@cache
def path_in_raysl(file: str, package: Path = PACKAGE) -> str | None:
    """Return the path of a file of code in the package, `train/loop.py`; None for code that is not of the package.

    Args:
        file: name that a frame or a traceback has for it.
        package: folder of the package.
    """
    path = Path(file)
    if not path.is_relative_to(package) or "site-packages" in path.relative_to(package).parts:
        return None
    return path.relative_to(package).as_posix()
