"""What pyarrow's client of S3 does not do, or does in more requests than it needs.

Each file that it writes is an upload in parts unless `allow_delayed_open` is set, each one that it deletes leaves an
empty object in place of the folder, and it drops a header `If-None-Match` given as metadata. botocore, of the extra
`raysl[s3]`, sends the requests that it lacks, and reads files that are read whole.
"""

from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

from pyarrow import fs

MOST_KEYS = 1000  # in one request to delete


class NoClient(Exception):
    """botocore is not installed, or may not do what pyarrow's client may."""


def with_single_puts(system: fs.FileSystem) -> fs.FileSystem:
    """Return a client that writes a file of up to some 5 MB in one request; file systems but S3 as they are."""
    if system.type_name != "s3":
        return system
    rebuild, (options,) = system.__reduce__()  # the client has no attributes for its options
    return rebuild({**options, "allow_delayed_open": True})


def put_new(system: fs.FileSystem, path: str, content: bytes) -> bool:
    """Create a file unless there is one, in one request; return whether it was created.

    Raises:
        NoClient: if there is no such request.
        OSError: if the network or the storage fails.
    """
    bucket, _, key = path.partition("/")
    return _ask(system, "put_object", Bucket=bucket, Key=key, Body=content, IfNoneMatch="*")


def delete(system: fs.FileSystem, paths: Sequence[str]) -> None:
    """Delete files, those that are there, and leave no empty object for their folder.

    Args:
        paths: paths of files in one bucket.

    Raises:
        NoClient: if pyarrow's client has to do it.
        OSError: if the network or the storage fails.
    """
    bucket = paths[0].partition("/")[0]
    keys = [path.partition("/")[2] for path in paths]
    if len(keys) == 1:
        _ask(system, "delete_object", Bucket=bucket, Key=keys[0])
        return
    for first in range(0, len(keys), MOST_KEYS):
        part = [{"Key": key} for key in keys[first : first + MOST_KEYS]]
        _ask(system, "delete_objects", Bucket=bucket, Delete={"Objects": part, "Quiet": True})


def _ask(system: fs.FileSystem, method: str, **request: Any) -> bool:
    """Send a request; return False where another file or request is in its way."""
    try:
        import botocore.session  # noqa: F401
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError as error:
        raise NoClient(str(error)) from error
    try:
        answer = getattr(_client(_options(system)), method)(**request)
    except ClientError as error:
        status = error.response["ResponseMetadata"]["HTTPStatusCode"]
        if status in (409, 412):  # 409: another request for this file is on its way
            return False
        if status >= 500 and status != 501:
            raise OSError(str(error)) from error
        raise NoClient(str(error)) from error  # such as rights that pyarrow's client has and this one has not
    except BotoCoreError as error:
        raise NoClient(str(error)) from error
    # a request to delete many files counts as answered even if some of them were refused
    if answer.get("Errors"):
        raise NoClient(answer["Errors"][0].get("Message", ""))
    return True


def client_of(system: fs.FileSystem) -> Any | None:
    """Return a client of botocore with address and credentials of pyarrow's; None without boto3, or if it is not of S3.

    None also where botocore finds no credentials: pyarrow's client reads public buckets without any.
    """
    if system.type_name != "s3":
        return None
    options = _options(system)
    return _client(options) if find_spec("boto3") and _is_signed(options) else None


@lru_cache(maxsize=8)
def _is_signed(options: tuple[tuple[str, Any], ...]) -> bool:
    from botocore.session import get_session

    values = dict(options)
    return bool(values["access_key"] or values["anonymous"]) or get_session().get_credentials() is not None


def _options(system: fs.FileSystem) -> tuple[tuple[str, Any], ...]:
    options = system.__reduce__()[1][0]
    names = ("region", "access_key", "secret_key", "session_token", "anonymous", "endpoint_override", "scheme")
    return tuple((name, options[name]) for name in names)


@lru_cache(maxsize=8)
def _client(options: tuple[tuple[str, Any], ...]) -> Any:
    import botocore
    from botocore.config import Config
    from botocore.session import get_session

    values = dict(options)
    return get_session().create_client(
        "s3",
        region_name=values["region"] or None,
        endpoint_url=endpoint(values),
        aws_access_key_id=values["access_key"],
        aws_secret_access_key=values["secret_key"],
        aws_session_token=values["session_token"] or None,
        config=Config(signature_version=botocore.UNSIGNED) if values["anonymous"] else None,
    )


def endpoint(options: dict[str, Any]) -> str | None:
    """Return the address of the server of a client with these options; None for the usual one."""
    address = options["endpoint_override"]
    return f"{options['scheme'] or 'https'}://{address}" if address and "://" not in address else address or None
