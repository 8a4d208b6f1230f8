"""Python files of users as modules, and their names in settings.

A file becomes a module whose name holds a digest. Pickles refer to that module, and a process that does not have the
file imports it from the source that the driver has sent (`raysl.cluster.board`).
"""

import hashlib
import importlib.util
import os.path
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.abc import ExecutionLoader
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from typing_extensions import override

from raysl.errors import log
from raysl.redact import texts_in

PREFIX = "raysl_user_"
"""Beginning of the names of modules from users' files."""


@dataclass(frozen=True)
class UserFile:
    """A file of a user as it was read.

    Args:
        path: absolute path on the machine of the driver.
        source: text of the file.
    """

    path: str
    source: str

    @property
    def digest(self) -> str:
        """SHA-256 of the text, in hexadecimal digits."""
        return hashlib.sha256(self.source.encode()).hexdigest()

    @property
    def module(self) -> str:
        """Name of the module that it becomes."""
        return PREFIX + hashlib.sha256(f"{self.path}\0{self.source}".encode()).hexdigest()[:12]

    def spec(self) -> ModuleSpec | None:
        """Return the specification of its module, which imports it without reading the file again."""
        return importlib.util.spec_from_loader(self.module, _Loader(self))


class _Loader(ExecutionLoader):
    def __init__(self, file: UserFile) -> None:
        self.file = file

    @override
    def get_filename(self, fullname: str) -> str:
        return self.file.path

    @override
    def get_source(self, fullname: str) -> str:
        return self.file.source


_read: dict[str, UserFile] = {}  # by absolute path
NAMED: dict[str, UserFile] = {}
"""Files that this process has imported, by their names in settings."""
SENT: dict[str, UserFile] = {}
"""Files that the driver has sent to this process, by their names in settings."""


def find_file(name: str) -> UserFile | None:
    """Return a file as it was when this process imported it, or as it is now; None if there is none.

    Args:
        name: path as settings name it. A relative one starts at the working directory of the driver.
    """
    if name in SENT:
        return SENT[name]
    path = Path(name).expanduser().resolve()
    now = UserFile(str(path), importlib.util.decode_source(path.read_bytes())) if path.is_file() else None
    file = _read.get(str(path), now)
    if now is not None and now != file:
        _warn_of_change(name)
    return file


@cache
def _warn_of_change(name: str) -> None:
    log.warning("%s has changed since this process imported it; start the process or kernel anew to use it", name)


def import_file(name: str, file: UserFile) -> ModuleType:
    """Return the module of a file that settings name; a process imports a file once."""
    if file.module not in sys.modules:
        spec = file.spec()
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        # entered before its code runs, as Python's own import does: dataclasses look up their module
        sys.modules[file.module] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[file.module]
            raise
    _read[file.path] = NAMED[name] = file
    return sys.modules[file.module]


def split_name(text: str) -> tuple[str, str] | None:
    """Return the file and the name in it of a component of a user; None for other texts.

    >>> split_name("mine/vicreg.py:VICReg"), split_name("simclr"), split_name("torch.optim:SGD")
    (('mine/vicreg.py', 'VICReg'), None, None)
    """
    path, _, attribute = text.rpartition(":")
    return (path, attribute) if path.endswith(".py") and attribute.isidentifier() else None


def relative_name(text: str, folder: Path, expand: Callable[[str], str] = os.path.expanduser) -> str:
    """Return a component's name with its file relative to the working directory; other texts as they are.

    The file is looked for in `folder`, then in the working directory. One that is outside of it gets its absolute path.
    """
    parts = split_name(text)
    if parts is None or "${" in text:
        return text
    cwd, file = Path.cwd(), Path(expand(parts[0]))
    path = folder / file if (folder / file).is_file() else cwd / file
    path = path.parent.resolve() / path.name
    return f"{path.relative_to(cwd).as_posix() if path.is_relative_to(cwd) else path}:{parts[1]}"


def short_name(text: str) -> str:
    """Return the name of a component for people: without the folders of a user's file.

    >>> short_name("/home/me/ssl/vicreg.py:VICReg"), short_name("simclr")
    ('vicreg.py:VICReg', 'simclr')
    """
    parts = split_name(text)
    return text if parts is None else f"{Path(parts[0]).name}:{parts[1]}"


def digests(tree: Any) -> dict[str, str]:
    """Return the SHA-256 of each user's file that a plain tree of settings names, by its name there."""
    names = [parts[0] for text in texts_in(tree) if (parts := split_name(text))]
    return {name: file.digest for name in names if (file := NAMED.get(name) or find_file(name))}


def renamed(text: str, names: Mapping[str, str]) -> str:
    """Return a component's name with another name of its file; other texts as they are.

    >>> renamed("vicreg.py:VICReg", {"vicreg.py": "mine/vicreg.py"})
    'mine/vicreg.py:VICReg'
    """
    parts = split_name(text)
    return text if parts is None else f"{names.get(parts[0], parts[0])}:{parts[1]}"
