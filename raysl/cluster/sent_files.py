"""The files of users that a driver sends to its cluster: the head keeps their sources, and processes import them."""

from dataclasses import asdict
from importlib.machinery import ModuleSpec

import ray

from raysl.cluster.board import Board
from raysl.user_files import NAMED, SENT, UserFile

_SOURCES = Board("files")
"""Files by the names of their modules. The name holds a digest, so a note never changes."""


def send_files() -> None:
    """Send the users' files that this process has imported to the head of the cluster that it is connected to."""
    names = _names()
    for name, file in NAMED.copy().items():  # while Ray starts, another thread imports the files of settings
        # the source first: a process that reads the name must find the source
        _SOURCES.write(file.module, asdict(file))
        names.write(name, file.module)


def receive_files() -> None:
    """Have names of users' files in settings mean those that the driver of this process has sent, if there is one."""
    if not _SOURCES.is_there:  # a trial that runs without Ray
        return
    names = _names()
    for name in names.names(""):
        SENT[name] = UserFile(**_SOURCES.read(names.read(name)))


def _names() -> Board:
    """Return the names of the modules of this job's files, by the names of the files in settings."""
    return Board(f"file names of {ray.get_runtime_context().get_job_id()}")


def find_spec(module: str) -> ModuleSpec | None:
    """Return the specification of a module from a user's file; None if no driver has sent it."""
    note = _SOURCES.read(module) if _SOURCES.is_there else None
    return None if note is None else UserFile(**note).spec()
