"""Small files in a remote folder by which processes agree on something, and their creation by one process alone.

fsspec has that creation as the mode `create` of `pipe_file`. pyarrow's own clients do not have it: that for S3 drops a
header `If-None-Match` given as metadata, so botocore sends the request, and gcsfs does for Google's buckets.
"""

from contextlib import suppress
from typing import Any

from fsspec import AbstractFileSystem
from pyarrow import fs

from raysl.storage.addresses import storage_errors
from raysl.storage.folder import Folder
from raysl.storage.reads import fsspec_client


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

    def names(self) -> list[str]:
        """Return the names of all files and folders in the folder, sorted."""
        client = fsspec_client(self.system)
        if client is not None:
            client.invalidate_cache()  # it keeps listings, which lack what others have written since
        return self.folder.names()

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
        path = f"{self.folder.path}/{name}"
        with storage_errors("write", self.folder.uri_of(name)), self.system.open_output_stream(path) as stream:
            stream.write(content)

    def delete(self, name: str) -> None:
        """Delete a file, if it is there."""
        with storage_errors("delete", self.folder.uri_of(name)), suppress(FileNotFoundError):
            self.system.delete_file(f"{self.folder.path}/{name}")


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
        return _put_s3(system, path, content) if system.type_name == "s3" else _pipe(_gcsfs(system), path, content)
    except ImportError as error:
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


def _put_s3(system: fs.FileSystem, path: str, content: bytes) -> bool:
    import botocore.session
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    bucket, _, key = path.partition("/")
    options = system.__reduce__()[1][0]  # address and credentials of pyarrow's client, which has no attributes for them
    try:
        client = botocore.session.get_session().create_client(
            "s3",
            region_name=options["region"] or None,
            endpoint_url=_endpoint(options),
            aws_access_key_id=options["access_key"],
            aws_secret_access_key=options["secret_key"],
            aws_session_token=options["session_token"] or None,
            config=Config(signature_version=botocore.UNSIGNED) if options["anonymous"] else None,
        )
        client.put_object(Bucket=bucket, Key=key, Body=content, IfNoneMatch="*")
    except ClientError as error:
        status = error.response["ResponseMetadata"]["HTTPStatusCode"]
        if status in (409, 412):  # 409: another request for this file is on its way
            return False
        if status >= 500 and status != 501:
            raise OSError(str(error)) from error
        raise Unconditional(str(error)) from error  # such as rights that pyarrow's client has and this one has not
    except BotoCoreError as error:
        raise Unconditional(str(error)) from error
    return True


def _gcsfs(system: fs.FileSystem) -> Any:
    import gcsfs

    options = system.__reduce__()[1][0]
    return gcsfs.GCSFileSystem(token="anon" if options["anonymous"] else None, endpoint_url=_endpoint(options))


def _endpoint(options: dict[str, Any]) -> str | None:
    address = options["endpoint_override"]
    return f"{options['scheme'] or 'https'}://{address}" if address and "://" not in address else address or None
