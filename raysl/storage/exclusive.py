"""Files that only one of several processes can create, where the storage can do that.

fsspec has it as the mode `create` of `pipe_file`. pyarrow's own clients have it nowhere: that of S3 leaves out a header
`If-None-Match` given as metadata, so botocore sends the request; for Google's buckets gcsfs does.
"""

from typing import Any

from fsspec import AbstractFileSystem
from pyarrow import fs


class Unconditional(Exception):
    """No client of this storage is installed that can create a file only where there is none."""


def create_new(system: fs.FileSystem, path: str, content: bytes) -> bool:
    """Create a file unless there is one, in a single request to the storage; whether it was created.

    A storage may ignore the condition; then a second call for the same path says true again.

    Raises:
        Unconditional: if there is no such request.
        OSError: if the network or the storage fails.
    """
    if isinstance(system, fs.PyFileSystem) and isinstance(system.handler, fs.FSSpecHandler):
        return _pipe(system.handler.fs, path, content)
    if system.type_name == "s3":
        return _put_s3(system, path, content)
    if system.type_name == "gcs":
        return _pipe(_gcsfs(system), path, content)
    raise Unconditional(system.type_name)


def forget_listings(system: fs.FileSystem) -> None:
    """Have the next look at a folder see what others have written: clients of fsspec keep what they saw before."""
    if isinstance(system, fs.PyFileSystem) and isinstance(system.handler, fs.FSSpecHandler):
        system.handler.fs.invalidate_cache()


def _pipe(system: Any, path: str, content: bytes) -> bool:
    if type(system).pipe_file is AbstractFileSystem.pipe_file:  # looks first and writes then, so two may write
        raise Unconditional(type(system).__name__)
    try:
        system.pipe_file(path, content, mode="create")
    except FileExistsError:
        return False
    except (TypeError, ValueError, NotImplementedError) as error:  # a file system that does not know the mode
        raise Unconditional(str(error)) from error
    return True


def _put_s3(system: fs.FileSystem, path: str, content: bytes) -> bool:
    try:
        import botocore.session
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError as error:
        raise Unconditional(str(error)) from error
    bucket, _, key = path.partition("/")
    try:
        client = _s3_client(botocore.session.get_session(), system)
        client.put_object(Bucket=bucket, Key=key, Body=content, IfNoneMatch="*")
    except ClientError as error:
        status = error.response["ResponseMetadata"]["HTTPStatusCode"]
        if status in (409, 412):  # 409: another request for this file is on its way
            return False
        if status >= 500:
            raise OSError(str(error)) from error
        raise Unconditional(str(error)) from error  # such as 501, or rights that pyarrow's client has and this has not
    except BotoCoreError as error:
        raise Unconditional(str(error)) from error
    return True


def _s3_client(session: Any, system: fs.FileSystem) -> Any:
    """A client with the address and the rights of pyarrow's."""
    from botocore import UNSIGNED
    from botocore.config import Config

    options = system.__reduce__()[1][0]
    address = options["endpoint_override"]
    return session.create_client(
        "s3",
        region_name=options["region"] or None,
        endpoint_url=f"{options['scheme'] or 'https'}://{address}"
        if address and "://" not in address
        else address or None,
        aws_access_key_id=options["access_key"],
        aws_secret_access_key=options["secret_key"],
        aws_session_token=options["session_token"] or None,
        config=Config(signature_version=UNSIGNED) if options["anonymous"] else None,
    )


def _gcsfs(system: fs.FileSystem) -> Any:
    try:
        import gcsfs
    except ImportError as error:
        raise Unconditional(str(error)) from error
    options = system.__reduce__()[1][0]
    address = options["endpoint_override"]
    return gcsfs.GCSFileSystem(
        token="anon" if options["anonymous"] else None,
        endpoint_url=f"{options['scheme'] or 'https'}://{address}" if address else None,
    )
