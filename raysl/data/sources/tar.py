"""Members of a tar file: where each lies, and a refusal of tars that are not what they should be."""

import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from raysl.errors import ConfigError

BLOCK = 512


@dataclass(frozen=True)
class Member:
    """A file inside a tar.

    Args:
        name: its path in the tar.
        offset: of its content from the start of the tar, in bytes.
        size: of its content, in bytes.
    """

    name: str
    offset: int
    size: int


def members(file: Any, where: str) -> Iterator[Member]:
    """The plain files of an uncompressed tar, in order; folders are left out.

    Args:
        file: open for reading, with `seek`.
        where: what it is called in messages.

    Raises:
        ConfigError: if it is no tar or breaks off, if a member lies outside (an absolute path, or one with `..`), or
            is neither a plain file nor a folder.
    """
    try:
        with tarfile.open(fileobj=file, mode="r:") as tar:
            for info in tar:
                if info.name.startswith("/") or ".." in info.name.split("/"):
                    raise ConfigError(f"{where}: the member {info.name!r} lies outside of the tar; make it anew")
                if info.isdir():
                    continue
                if not info.isreg() or info.issparse():
                    raise ConfigError(f"{where}: the member {info.name!r} is no plain file; make the tar without links")
                yield Member(info.name, info.offset_data, info.size)
            end = tar.offset
    except tarfile.TarError as error:
        raise ConfigError(f"{where} is no whole, uncompressed tar ({error}); fetch or make it anew") from error
    file.seek(end)
    if bytes(file.read(BLOCK)) != bytes(
        BLOCK
    ):  # tarfile takes a tar that breaks off between two members for a whole one
        raise ConfigError(f"{where} breaks off, or is damaged, at byte {end:,}; fetch or make it anew")
