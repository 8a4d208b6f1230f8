"""Trained backbones that come with raysl, by name: `cifar10/simclr`.

A folder here, `cifar10/simclr`, has a model card, `README.md`, and one checkpoint without the state of its training.
Benchmarks and features are written beside a checkpoint, and a package may be read-only or belong to several users, so a
backbone that is used is first copied into a cache folder. docs/weights.md says how they were trained and how another
one is added.
"""

import hashlib
import os
import shutil
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from raysl.errors import ConfigError

FOLDER = Path(__file__).parent
CACHE = "RAYSL_CACHE"  # a variable: the cache folder


@cache
def trained_names() -> tuple[str, ...]:
    """Return the names of the backbones, sorted.

    >>> "cifar10/simclr" in trained_names()
    True
    """
    runs = {path.parents[1] for path in FOLDER.glob("*/*/checkpoint_*/meta.json")}
    return tuple(sorted(run.relative_to(FOLDER).as_posix() for run in runs))


def is_trained(text: object) -> bool:
    """Whether a text names one of the backbones; what lies at the path of that name comes first.

    >>> is_trained("cifar10/simclr"), is_trained("runs/mine")
    (True, False)
    """
    name = str(text)
    return name in trained_names() and not os.path.lexists(name)


def read_title(name: str) -> str:
    """Return the first line of a backbone's model card, without its mark.

    >>> "SimCLR" in read_title("cifar10/simclr")
    True
    """
    with (FOLDER / name / "README.md").open(encoding="utf-8") as card:
        return card.readline().lstrip("# ").strip()


def unpacked(name: str) -> str:
    """Return the path of a backbone's checkpoint in the cache folder, where it is copied if it is not there.

    The folder is that in the variable RAYSL_CACHE, or else `raysl` in XDG_CACHE_HOME, or else `~/.cache/raysl`. Other
    weights of the same name, as of another version of raysl, lie in another folder. Several processes may copy at once.

    >>> Path(unpacked("cifar10/simclr")).name
    'checkpoint_000007800'
    """
    source = next((FOLDER / name).glob("checkpoint_*"))
    digest = hashlib.sha256((source / "meta.json").read_bytes()).hexdigest()[:12]  # it has the hashes of the others
    target = cache_folder() / "trained" / digest / name / source.name
    if not _is_same(source, target):
        try:
            _copy(source, target)
        except OSError as error:
            if not _is_same(source, target):  # else another process was faster
                raise ConfigError(
                    f"{name}: cannot write {target}: {error.strerror}; set the variable {CACHE} to a folder that can "
                    "be written"
                ) from error
    return str(target)


def trained_hint() -> str:
    """Return the end of a message about a checkpoint that is not there: what else could be named."""
    return f"; these come with raysl: {', '.join(trained_names())}"


def _copy(source: Path, target: Path) -> None:
    """Copy a folder of files; it is whole, or not there. One that is there, but damaged, is replaced."""
    target.parent.mkdir(parents=True, exist_ok=True)
    # filled beside its place, then renamed: other processes see the whole folder, or none
    with TemporaryDirectory(prefix=".draft_", dir=target.parent) as draft:
        new = Path(draft) / "new"
        new.mkdir()
        for path in source.iterdir():
            shutil.copyfile(path, new / path.name)  # without its mode: what is read-only in a package is not here
        # a rename replaces no folder with files in it; the damaged one is deleted with the draft
        if target.exists():
            target.rename(Path(draft) / "damaged")
        new.rename(target)


def _is_same(source: Path, target: Path) -> bool:
    try:
        return all(path.read_bytes() == (target / path.name).read_bytes() for path in source.iterdir())
    except OSError:
        return False


def cache_folder() -> Path:
    """Return the folder for what raysl keeps on this machine."""
    if folder := os.environ.get(CACHE):
        return Path(folder).expanduser().absolute()
    above = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(above).absolute() / "raysl"
