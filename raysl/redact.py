"""Credentials in URIs: used to open them, never written down. What raysl stores or shows has `***` in their place.

`s3://KEY:SECRET@bucket/x` becomes `s3://***@bucket/x`, and `https://host/x?token=abc` becomes `https://host/x?token=***`.
Opening such a URI leaves out what is `***`, so that the credentials of the environment apply.
"""

import logging
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

HIDDEN = "***"
KEY_SCHEMES = ("http", "https", "s3", "s3a", "s3n")
"""Where a user without a password may be a key too. Elsewhere it is a name: a container, a login, `anonymous`."""
_SECRETS = (
    *("password", "passwd", "pwd", "secret", "secretkey", "accesskey", "accountkey", "apikey", "accesskeyid"),
    *("accessid", "token", "signature", "credential", "credentials", "sas"),
)
_SHORT_SECRETS = ("sig", "auth", "authorization")
_TAIL = re.compile(r"['\":;,.)\]}]*$")


def _user(stop: str) -> re.Pattern[str]:
    """What stands before the `@` of a URI: in its first part, or, with a slash that should be encoded, beyond it."""
    plain = rf"[^/?#{stop}]*"
    port = r"\d*(?:[/?#\s]|$)"
    slashed = rf"[^/?#@:{stop}]+:(?!:|{port})(?:(?!://)[^@{stop}])*"
    return re.compile(rf"([a-z][a-z0-9+.\-]*)://({plain}|{slashed})@", re.IGNORECASE)


def _parameter(stop: str) -> re.Pattern[str]:
    return re.compile(rf"([?&;])([^?&;=/{stop}]+)=([^&{stop}]*)")


_IN_TEXT = (_user(r"\s\""), _parameter(r"\s\"<>"))
_WHOLE = (_user(""), _parameter(""))
_HIDDEN_USER = re.compile(rf"://([^/?#@:]*)(:?){re.escape(HIDDEN)}@")


def redact(text: str) -> str:
    """Free text with the credentials of the URIs in it as `***`."""
    user, parameter = _IN_TEXT
    return parameter.sub(_hide_parameter, user.sub(_hide_user, text))


def redact_uri(uri: str) -> str:
    """A URI with its credentials as `***`: user and password, and secrets among its parameters. A path as it is."""
    if "://" not in uri:
        return uri
    user, parameter = _WHOLE
    return parameter.sub(lambda found: _hide_parameter(found, is_whole=True), user.sub(_hide_user, uri))


def without_hidden(uri: str) -> str:
    """A URI without the parts that are `***`."""
    if HIDDEN not in uri or "://" not in uri:
        return uri
    uri = _HIDDEN_USER.sub(lambda found: f"://{found[1]}@" if found[1] else "://", uri)
    base, mark, query = uri.partition("?")
    kept = "&".join(part for part in query.split("&") if part.partition("=")[2] != HIDDEN)
    return f"{base}{mark}{kept}" if kept else base


def bare_uri(uri: str) -> str:
    """A URI without its credentials, of whatever kind: the same whoever asks for it."""
    return without_hidden(redact_uri(uri))


def redact_tree(tree: Any) -> Any:
    """Plain settings with the credentials in their texts as `***`."""
    return each_text(tree, redact_uri)


def bare_tree(tree: Any) -> Any:
    """Plain settings without credentials: alike whoever they are of, and where the environment has them."""
    return each_text(tree, bare_uri)


class Redacted(logging.Filter):
    """Takes credentials out of what is logged."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every record pass, redacted."""
        message = record.getMessage()
        shown = redact(message)
        if shown != message:
            record.msg, record.args = shown, None
        return True


def _hide_user(found: re.Match[str]) -> str:
    scheme, user = found[1], found[2]
    name, colon, _ = user.partition(":")
    if not user or scheme.lower() in KEY_SCHEMES:
        return f"{scheme}://{HIDDEN if user else ''}@"
    return f"{scheme}://{name}{colon}{HIDDEN if colon else ''}@"


def _hide_parameter(found: re.Match[str], is_whole: bool = False) -> str:
    mark, name, value = found.groups()
    if not _is_secret(name) or not value:
        return found[0]
    tail = _TAIL.search(value) if not is_whole else None
    return f"{mark}{name}={HIDDEN}{tail[0] if tail else ''}"


def _is_secret(name: str) -> bool:
    letters = re.sub(r"[^a-z]", "", unquote(name).lower())
    return letters.endswith(_SECRETS) or letters in _SHORT_SECRETS


def each_text(tree: Any, change: Callable[[str], str]) -> Any:
    """A plain tree with its texts changed."""
    if isinstance(tree, str):
        return change(tree)
    if isinstance(tree, dict):
        return {key: each_text(value, change) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [each_text(value, change) for value in tree]
    return tree
