"""A file system that fails on demand: `faulty:///path` is the local path, less what was asked to go wrong with it.

Faults are files in the folder that RAYSL_FAULTS names, one for each time that something is to fail, so that any process
can take one: `Faults.add` writes them, and whoever meets an operation that fits takes the file away and fails.
"""

import json
import os
import re
import time
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

import raysl

VARIABLE = "RAYSL_FAULTS"


class Faulty(LocalFileSystem):
    """The local file system with the faults of RAYSL_FAULTS; like a bucket it makes folders as they are needed."""

    protocol = "faulty"
    cachable = False

    def __init__(self, **options: Any) -> None:
        super().__init__(auto_mkdir=True, **options)

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return LocalFileSystem._strip_protocol(str(path).removeprefix("faulty://"))

    def info(self, path: str, **options: Any) -> Any:
        _meet("look", path)
        return super().info(path, **options)

    def ls(self, path: str, detail: bool = False, **options: Any) -> Any:
        _meet("look", path)
        return super().ls(path, detail=detail, **options)

    def mv(self, source: str, target: str, **options: Any) -> None:
        _meet("write", target)
        super().mv(source, target, **options)

    def rm(self, path: str, recursive: bool = False, maxdepth: int | None = None) -> None:
        _meet("delete", path)
        super().rm(path, recursive=recursive, maxdepth=maxdepth)

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        kind = _meet("read" if mode == "rb" else "write", path)
        file = super()._open(path, mode, **options)
        if kind == "tear":
            file.write(b"half of it")
            file.close()
            raise OSError(f"the network was cut in the middle of {path}")
        if kind == "lose":
            close = file.close

            def close_and_lose() -> None:
                close()
                Path(path).unlink(missing_ok=True)

            file.close = close_and_lose
        return file


class Faults:
    """What is to go wrong, for this process and those that get `environment`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "faults"
        self.folder.mkdir(parents=True)
        self.count = 0

    def add(
        self, operation: str, pattern: str, kind: str = "error", times: int | None = 1, seconds: float = 0.0
    ) -> None:
        """Have the next operations on paths that fit fail.

        Args:
            operation: look, read, write or delete; * is any.
            pattern: regular expression that is searched in the path.
            kind: `error`; `tear`, half is written; `lose`, the file is gone when it is written; `wait`, it takes long.
            times: how often; None for ever, or until `clear`.
            seconds: of `wait`.
        """
        for _ in range(times or 1):
            self.count += 1
            fault = {
                "operation": operation,
                "pattern": pattern,
                "kind": kind,
                "seconds": seconds,
                "stays": times is None,
            }
            draft = self.folder / f"{self.count:05}.part"
            draft.write_text(json.dumps(fault))
            draft.rename(self.folder / f"{self.count:05}.json")

    def clear(self) -> None:
        """Let everything work again."""
        for path in self.folder.glob("*.json"):
            path.unlink(missing_ok=True)

    def num_left(self) -> int:
        """Faults that nobody has met yet."""
        return len(list(self.folder.glob("*.json")))

    def environment(self) -> dict[str, str]:
        """Variables with which a child process knows the file system and the faults."""
        info = self.folder.parent / "site" / "raysl_faulty-1.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: raysl-faulty\nVersion: 1\n")
        (info / "entry_points.txt").write_text("[fsspec.specs]\nfaulty = tests.faults:Faulty\n")
        root = Path(raysl.__path__[0]).parent
        paths = [str(info.parent), str(root), os.environ.get("PYTHONPATH", "")]
        return {VARIABLE: str(self.folder), "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def register() -> None:
    """Have this process know `faulty://`."""
    fsspec.register_implementation("faulty", Faulty, clobber=True)


def _meet(operation: str, path: str) -> str | None:
    """Take the first fault that fits; the kind of it where the caller has to act."""
    folder = os.environ.get(VARIABLE)
    for file in sorted(Path(folder).glob("*.json")) if folder else ():
        try:
            fault = json.loads(file.read_text())
            if fault["operation"] in (operation, "*") and re.search(fault["pattern"], str(path)):
                if not fault["stays"]:
                    file.unlink()
            else:
                continue
        except FileNotFoundError:  # another process met it
            continue
        if fault["kind"] == "error":
            raise OSError(f"the storage does not answer ({operation} {path})")
        if fault["kind"] == "wait":
            time.sleep(fault["seconds"])
        return str(fault["kind"])
    return None
