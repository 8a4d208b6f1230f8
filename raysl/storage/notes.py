"""Small files in a remote folder by which processes agree on something, and their creation by one process alone.

fsspec has that creation as the mode `create` of `pipe_file`. pyarrow's own clients do not have it: botocore sends the
request to S3 (`raysl.storage.s3`), and gcsfs does to Google's buckets.
"""

from typing import Any

from fsspec import AbstractFileSystem
from pyarrow import fs

from raysl.storage.folder import Folder, Version, delete_file, put, storage_errors
from raysl.storage.reads import fsspec_client
from raysl.storage.s3 import NoClient, endpoint, put_new


class Unconditional(Exception):
    """No installed client of this storage can create a file only where there is none."""


class Notes:
    """The small files of a folder.

    Each call is tried once, for callers that come back soon, and sees what other processes have just written.
    Its methods raise ConfigError while the storage fails: a StorageError where that may pass.
    """

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.system = folder.system

    def versions(self) -> dict[str, Version]:
        """Return the files and folders in the folder: each name with what changes when the file is written again."""
        return self.folder.versions()

    def create(self, name: str, content: bytes) -> bool:
        """Create a file unless there is one, as `create_new`."""
        with storage_errors("write", self.folder.uri_of(name)):
            return create_new(self.system, f"{self.folder.path}/{name}", content)

    def read(self, name: str) -> bytes | None:
        """Return the content of a file; None where there is none."""
        with storage_errors("read", self.folder.uri_of(name)):
            try:
                with self.system.open_input_stream(f"{self.folder.path}/{name}") as stream:
                    return bytes(stream.read())
            except FileNotFoundError:
                return None

    def write(self, name: str, content: bytes) -> None:
        """Write a file, or write it anew."""
        with storage_errors("write", self.folder.uri_of(name)):
            put(self.system, content, f"{self.folder.path}/{name}")

    def delete(self, name: str) -> None:
        """Delete a file, if it is there."""
        with storage_errors("delete", self.folder.uri_of(name)):
            delete_file(self.system, f"{self.folder.path}/{name}")


def create_new(system: fs.FileSystem, path: str, content: bytes) -> bool:
    """Create a file unless there is one, in a single request to the storage; return whether it was created.

    A storage may ignore the condition; then a second call for the same path returns True again.

    Raises:
        Unconditional: if there is no such request.
        OSError: if the network or the storage fails.
    """
    client = fsspec_client(system)
    if client is not None:
        return _pipe(client, path, content)
    if system.type_name not in ("s3", "gcs"):
        raise Unconditional(system.type_name)
    try:
        return put_new(system, path, content) if system.type_name == "s3" else _pipe(_gcsfs(system), path, content)
    except (ImportError, NoClient) as error:
        raise Unconditional(str(error)) from error


def _pipe(client: Any, path: str, content: bytes) -> bool:
    if type(client).pipe_file is AbstractFileSystem.pipe_file:  # it looks first and then writes, so two may write
        raise Unconditional(type(client).__name__)
    try:
        client.pipe_file(path, content, mode="create")
    except FileExistsError:
        return False
    except (TypeError, ValueError, NotImplementedError) as error:  # a file system that does not know the mode
        raise Unconditional(str(error)) from error
    return True


def _gcsfs(system: fs.FileSystem) -> Any:
    import gcsfs

    options = system.__reduce__()[1][0]
    return gcsfs.GCSFileSystem(token="anon" if options["anonymous"] else None, endpoint_url=endpoint(options))
