"""The folder of a checkpoint, which is whole or absent, and the newest whole one of a run.

A checkpoint counts when its `meta.json` is there. That file is written last, after everything else is in place, and
lists size and SHA-256 of every other file, which are compared whenever a file is read.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from raysl.errors import ConfigError, log
from raysl.process.temporary import temporary_folder
from raysl.storage.folder import Folder
from raysl.storage.records import Damaged as Damaged
from raysl.storage.records import check_types, read_record
from raysl.trained import is_trained, trained_hint, unpacked

FORMAT = 1
META_FILE = "meta.json"
KEPT_FILE = "kept.json"  # of the run's folder, see `Kept`
STATE_FILE, BACKBONE_FILE, SETTINGS_FILE = "train_state.pt", "backbone.safetensors", "run.yaml"
PREFIX, DRAFT_PREFIX = "checkpoint_", "draft_"
LONGEST = 20  # ranks that are remembered: the first ones may not be stored, or be deleted by hand


@dataclass(frozen=True)
class NewestCheckpoint:
    """The newest whole checkpoint of a run.

    Args:
        name: name of its folder; None if there is no whole checkpoint.
        passed_over: newer checkpoints that are not whole, as "name: reason".
    """

    name: str | None = None
    meta: dict[str, Any] = field(default_factory=dict)
    passed_over: tuple[str, ...] = ()

    @property
    def step(self) -> int:
        """Number of updates done; 0 without a checkpoint."""
        return int(self.meta.get("step", 0))


def checkpoint_name(step: int) -> str:
    """Return the name of the checkpoint at a step.

    >>> checkpoint_name(1200)
    'checkpoint_000001200'
    """
    return f"{PREFIX}{step:09d}"


def seal(folder: Path, meta: dict[str, Any]) -> None:
    """Write `meta.json` with size and SHA-256 of every file in a local folder, and sync all of them to the disk."""
    files = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.name != META_FILE):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            os.fsync(file.fileno())
        files[path.relative_to(folder).as_posix()] = {"size": path.stat().st_size, "sha256": digest}
    # all files are on the disk before the one that vouches for them; a rename shows it whole or not at all
    draft = folder / f"{META_FILE}.part"
    with draft.open("w") as file:
        json.dump({"format": FORMAT, **meta, "files": files}, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    draft.rename(folder / META_FILE)
    _sync_folder(folder)


def read_meta(folder: Folder) -> dict[str, Any]:
    """Read `meta.json` of a checkpoint.

    Raises:
        Damaged: if it is missing or damaged.
        ConfigError: if its format is not this version's, or the storage cannot be read.
    """
    if not folder.exists(META_FILE):
        raise Damaged(f"{folder.uri} is not a checkpoint: it has no {META_FILE}, which is written last")
    where = folder.uri_of(META_FILE)
    try:
        meta: dict[str, Any] = read_record(folder.read(META_FILE), where)
    except Damaged as error:
        raise Damaged(f"{folder.uri} is not a checkpoint: {error}") from error
    if meta.get("format") != FORMAT:
        raise ConfigError(
            f"{folder.uri} has checkpoint format {meta.get('format')!r}, this raysl reads format {FORMAT}; "
            f"open it with raysl {meta.get('raysl') or '(unknown)'}"
        )
    check_types(meta, where, _META_KINDS)
    for name, written in meta["files"].items():
        check_types(written, f"{where}: {name}", {"size": int, "sha256": str})
    return meta


_META_KINDS = {
    "step": int,
    "epochs": int,
    "method": str,
    "raysl": str,
    "data": dict[str, Any],
    "metrics": dict[str, Any],
    "files": dict[str, dict[str, Any]],
}
"""Types of the fields that every checkpoint has."""


def verify(folder: Folder, names: Collection[str] | None = None) -> dict[str, Any]:
    """Compare files of a checkpoint with the sizes and hashes in its `meta.json`.

    Args:
        names: names of the files; default: all that `meta.json` lists.

    Returns:
        The content of `meta.json`.

    Raises:
        Damaged: if a file is missing or has other content.
        ConfigError: if the format is not this version's, or the storage cannot be read.
    """
    meta = read_meta(folder)
    files = meta["files"]
    for name in files if names is None else [name for name in names if name in files]:
        written, size = files[name], folder.size(name)
        if size != written["size"]:
            have = "is missing" if size is None else f"has {size:,} of {written['size']:,} bytes"
            raise Damaged(f"{folder.uri_of(name)} {have}; {_ADVICE}")
        if folder.sha256(name) != written["sha256"]:
            raise Damaged(f"{folder.uri_of(name)} is not what was written, its SHA-256 differs; {_ADVICE}")
    return meta


_ADVICE = "copy it again, or use an older checkpoint"
ADVICE = "give the folder of a checkpoint or of a run that has one"


def has_state(meta: dict[str, Any]) -> bool:
    """Whether a checkpoint with this `meta.json` has the state of its training beside the backbone.

    Imported weights and the backbones that come with raysl have none.

    >>> has_state({"files": {"backbone.safetensors": {}}})
    False
    """
    return STATE_FILE in meta["files"]


def newest_whole(run: Folder, names: Collection[str] | None = None) -> NewestCheckpoint:
    """Return the newest checkpoint of a run whose files verify."""
    passed_over: list[str] = []
    for name in reversed(checkpoint_names(run)):
        try:
            return NewestCheckpoint(name, verify(run.child(name), names), tuple(passed_over))
        except Damaged as error:
            passed_over.append(f"{name}: {error}")
    return NewestCheckpoint(passed_over=tuple(passed_over))


def newest(uri: str, names: Collection[str] = (BACKBONE_FILE,)) -> str:
    """Return the address of the checkpoint at a URI, or of the newest one of the run there.

    The name of a trained backbone of raysl, `cifar10/simclr`, stands for its copy in the cache folder. The files
    `names` have to be whole: by default only the backbone, as settings may be edited by hand when images have moved.

    Raises:
        ConfigError: if there is no checkpoint, or the given one is damaged.
    """
    folder = Folder(unpacked(str(uri)) if is_trained(uri) else uri)
    if folder.is_local and Path(folder.path).is_file():
        raise ConfigError(
            f"{uri!r} is a file, not a checkpoint of raysl; of a file of weights `raysl convert {uri} --out "
            "runs/theirs` makes a run, which is given in its place"
        )
    if folder.exists(META_FILE):
        verify(folder, names)
        return folder.uri
    checkpoint = newest_whole(folder, names)
    for reason in checkpoint.passed_over:
        log.warning("passed over %s", reason)
    if checkpoint.name is None:
        raise ConfigError(f"no checkpoint at {folder.uri!r}; {ADVICE}{trained_hint()}")
    return folder.uri_of(checkpoint.name)


@contextmanager
def local_copy(uri: str, names: Collection[str]) -> Iterator[Path]:
    """Yield the path of a local folder, or of a temporary local copy of some files of a remote one."""
    folder = Folder(uri)
    if folder.is_local:
        yield Path(folder.path)
        return
    with temporary_folder("checkpoint") as target:
        folder.download(Path(target), names)
        yield Path(target)


def checkpoint_names(run: Folder) -> list[str]:
    """Return the names of the checkpoints in a run's folder, whole or not, oldest first."""
    return [name for name in run.names() if name.startswith(PREFIX)]


def write_local(run: Path, name: str, write: Callable[[Path], None]) -> None:
    """Let `write` fill a draft folder, and rename it to `name` in a local run's folder when it is whole."""
    draft = run / f"{DRAFT_PREFIX}{name}"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        write(draft)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)  # a full disk needs the room
        raise
    target = run / name
    if target.exists():  # a damaged one, from which training could not go on
        shutil.rmtree(target)
    draft.rename(target)
    _sync_folder(run)


def upload(source: Path, run: Folder, name: str) -> None:
    """Copy a whole checkpoint from a local folder into a run's folder, its `meta.json` last."""
    target = run.child(name)
    # files of an earlier try must not be mixed with the new ones
    if target.versions():
        remove(run, name)
    paths = [path for path in sorted(source.rglob("*")) if path.is_file() and path.name != META_FILE]
    for path in [*paths, source / META_FILE]:
        target.copy_in(path, path.relative_to(source).as_posix())


def remove(run: Folder, name: str) -> None:
    """Delete a checkpoint, `meta.json` first, so that half of it never counts."""
    run.child(name).remove(META_FILE)
    run.remove_folder(name)


def remove_old(run: Folder, newest: str, keep: int) -> None:
    """Delete checkpoints up to `newest`, except the `keep` newest and those that `kept.json` names."""
    old = [name for name in checkpoint_names(run) if name <= newest][:-keep]
    if not old:
        return
    kept = Kept.read(run)
    spared = {*kept.always, kept.best_in(run)}
    for name in old:
        if name not in spared:
            remove(run, name)


def sweep(run: Folder) -> list[str]:
    """Delete half-written checkpoints and return their names; only for a process that works alone in the folder."""
    halves = [name for name in run.names() if name.startswith(DRAFT_PREFIX + PREFIX)]
    halves += [name for name in checkpoint_names(run) if not run.exists(f"{name}/{META_FILE}")]
    for name in halves:
        run.remove_folder(name)
    return halves


@dataclass(frozen=True)
class Kept:
    """The checkpoints that a run keeps beside the newest ones: `kept.json` in its folder.

    Args:
        rule: metric and mode of the ranking.
        best: names of checkpoints and their values, best first; the first that exists is kept.
        always: names of checkpoints that are kept in any case.
    """

    rule: tuple[str | None, str | None] = (None, None)
    best: tuple[tuple[str, float], ...] = ()
    always: tuple[str, ...] = ()

    @classmethod
    def read(cls, run: Folder) -> "Kept":
        """Read `kept.json` of a run's folder; empty where it does not exist."""
        content = run.read_if_there(KEPT_FILE)
        if not content:
            return cls()
        kinds = {"rule": tuple[str | None, str | None], "best": list[tuple[str, float]], "always": list[str]}
        fields = read_record(content, run.uri_of(KEPT_FILE), kinds)
        metric, mode = fields["rule"]
        best = tuple((str(name), float(value)) for name, value in fields["best"])
        return cls((metric, mode), best, tuple(fields["always"]))

    def write(self, folder: Path) -> None:
        """Write `kept.json` into a local folder."""
        draft = folder / f"{KEPT_FILE}.part"
        draft.write_text(json.dumps(asdict(self), indent=1))
        draft.rename(folder / KEPT_FILE)

    def until(self, step: int) -> "Kept":
        """Return the entries of checkpoints up to a step."""
        last = checkpoint_name(step)
        return replace(
            self,
            best=tuple((name, value) for name, value in self.best if name <= last),
            always=tuple(name for name in self.always if name <= last),
        )

    def ranked(self, name: str, value: float, mode: Literal["min", "max"]) -> "Kept":
        """Return the ranking with one more checkpoint, after those that are equally good."""
        sign = 1 if mode == "min" else -1
        best = sorted([*self.best, (name, value)], key=lambda rank: sign * rank[1])  # keeps the order of equals
        return replace(self, best=tuple(best[:LONGEST]))

    def with_always(self, name: str) -> "Kept":
        """Return the entries with one more checkpoint that is kept in any case."""
        return replace(self, always=(*self.always, name))

    def best_in(self, run: Folder) -> str | None:
        """Return the name of the best checkpoint that exists."""
        return next((name for name, _ in self.best if run.exists(f"{name}/{META_FILE}")), None)


def _sync_folder(folder: Path) -> None:
    """Have the system write down which names are in a folder."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
