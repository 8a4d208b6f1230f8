"""A digest of the code behind a number, so that results of other code are measured again."""

import hashlib
import inspect
from functools import cache
from pathlib import Path

import raysl
from raysl.process.environment import version_of

LIBRARIES = ("torch", "torchvision", "numpy", "scikit-learn", "faiss-gpu", "faiss-cpu")
"""Libraries whose versions count: they decode images and compute features and scores."""


def code_of(*classes: type[object]) -> str:
    """Return twelve hexadecimal digits of the code that computes a benchmark's numbers.

    All of raysl counts, with the versions of `LIBRARIES` and the files of classes that are not raysl's, but not what
    these import. Empty where such a class has no source, as in a notebook.

    Args:
        classes: the benchmark, the backbone and the readers of the images.
    """
    others = [cls for cls in classes if not cls.__module__.startswith("raysl.")]
    try:  # the source of a user's module, and not its path, so that a moved file keeps its results
        sources = [inspect.getsource(inspect.getmodule(cls)) for cls in others]  # type: ignore[arg-type]
    except (OSError, TypeError):
        return ""
    names = " ".join(cls.__qualname__ for cls in others)
    return hashlib.sha256("\0".join([_package(), names, *sources]).encode()).hexdigest()[:12]


@cache
def _package() -> str:
    """Return the digest of raysl's sources and of the versions of libraries."""
    digest = hashlib.sha256(" ".join(version_of(name) or "-" for name in LIBRARIES).encode())
    folder = Path(raysl.__file__).parent
    for file in sorted(folder.rglob("*.py")):
        digest.update(f"\0{file.relative_to(folder).as_posix()}\0".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()
