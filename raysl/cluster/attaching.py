"""Attaching to the cluster that RAY_ADDRESS names: its address, and whether it wants a token."""

import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ray.exceptions import AuthenticationError, RaySystemError, RpcError

from raysl.cluster.private import try_cluster
from raysl.errors import ConfigError

ANSWER_S = 10.0
"""Seconds in which a cluster must accept a connection."""
TOKEN = Path("~/.ray/auth_token")
"""File in which Ray keeps this user's token."""
_HOST_AND_PORT = re.compile(r"(\[[^\[\]]+\]|[^\[\]:/\s]+):(\d{1,5})")
_OTHERS = "set the address of another one, or unset RAY_ADDRESS for a private one on this machine"


def check_address(address: str) -> None:
    """Check the form of RAY_ADDRESS; nothing is connected.

    >>> check_address("10.0.0.1:6379")
    """
    match = _HOST_AND_PORT.fullmatch(address)
    if address != "auto" and (match is None or not 0 < int(match[2]) < 1 << 16):
        raise ConfigError(
            f"RAY_ADDRESS={address} is no address of a cluster; write host:port, such as 10.0.0.1:6379, or auto for "
            "the cluster that runs on this machine, or unset it for a private one"
        )


def prepare(address: str) -> None:
    """Check that a cluster answers, and set RAY_AUTH_MODE to `token` where it wants a token and none is set.

    Raises:
        ConfigError: if the address is of another form, nothing answers there, or the cluster wants a token that this
            process does not have.
    """
    check_address(address)
    if address != "auto":
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), ANSWER_S).close()
        except OSError as error:
            raise ConfigError(
                f"no Ray cluster answers at RAY_ADDRESS={address} ({error}); start it, {_OTHERS}"
            ) from error
    mode = os.environ.get("RAY_AUTH_MODE")
    if mode == "token" and (reason := why_no_token()):
        raise ConfigError(
            f"RAY_AUTH_MODE=token needs a token and {reason}: set RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH as on the head "
            f"of {address}, or unset RAY_AUTH_MODE if that cluster has no tokens"
        )
    if _accepts(address):
        return
    # where the user has set no mode, the token at hand is tried, and kept only if it is accepted
    if mode is None and not why_no_token():
        os.environ["RAY_AUTH_MODE"] = "token"
        if _accepts(address):
            return
        del os.environ["RAY_AUTH_MODE"]
    raise ConfigError(
        f"the cluster at {address} wants a token: set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH as "
        "on its head"
    )


def why_no_token() -> str:
    """Return why Ray finds no token in RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token; empty if it does."""
    path = os.environ.get("RAY_AUTH_TOKEN_PATH")
    try:
        is_there = os.environ.get("RAY_AUTH_TOKEN") or Path(path or TOKEN.expanduser()).read_text().strip()
    except OSError:
        is_there = ""
    if is_there:
        return ""
    return f"RAY_AUTH_TOKEN_PATH={path} holds none" if path else "there is none"


def _accepts(address: str) -> bool:
    """Return whether a cluster accepts this process as RAY_AUTH_MODE is set now, or that cannot be asked."""
    with _quiet():
        try:
            try_cluster(address)
        except AuthenticationError:
            return False
        except ConnectionError as error:
            raise ConfigError(
                f"no Ray cluster runs on this machine, as RAY_ADDRESS=auto wants it; start it, {_OTHERS}"
            ) from error
        except (RpcError, RaySystemError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
            raise ConfigError(
                f"what listens at RAY_ADDRESS={address} does not answer as a Ray cluster ({reason}); try again later "
                f"if the head is busy, {_OTHERS}"
            ) from error
    return True


@contextmanager
def _quiet() -> Iterator[None]:
    """Discard stderr inside, to which Ray's core writes what it also raises."""
    # native code writes to the file descriptor itself, past Python's sys.stderr
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
