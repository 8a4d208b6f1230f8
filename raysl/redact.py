"""Credentials in URIs and variables: used, and replaced by `***` in everything that raysl stores or shows.

`s3://KEY:SECRET@bucket/x` becomes `s3://***@bucket/x`, and `https://host/x?token=abc` becomes `https://host/x?token=***`.
When such a URI is opened, its `***` are left out, so that the credentials of the environment apply.
"""

import dataclasses
import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

HIDDEN = "***"
KEY_SCHEMES = ("http", "https", "s3", "s3a", "s3n", "oss", "cos", "cosn", "swift", "lakefs")
"""Schemes whose user part may be a key even without a password; elsewhere it is a container or a login."""
_SECRETS = (
    *("password", "passwd", "pwd", "secret", "secretkey", "accesskey", "accountkey", "apikey", "accesskeyid"),
    *("accessid", "token", "signature", "credential", "credentials", "sas"),
)
_SHORT_SECRETS = (
    *("sig", "auth", "authorization", "key", "pass", "pw", "jwt", "code", "session", "sessionid", "tokenv"),
    "sharedaccesskey",
)
_NAMED_USERS = ("github",)
"""Schemes whose user part names a place: `github://org:repo@sha`."""
_TAIL = re.compile(r"['\":;,.)\]}]*$")


def _user(stop: str) -> re.Pattern[str]:
    """Match scheme and user part of a URI, also one with a slash that should have been encoded."""
    plain = rf"[^/?#{stop}]*"
    port = r"\d*(?:[/?#\s]|$)"
    slashed = rf"[^/?#@:{stop}]+:(?!:|{port})(?:(?!://)[^@{stop}])*"
    return re.compile(rf"([a-z][a-z0-9+.\-]*)://({plain}|{slashed})@", re.IGNORECASE)


def _parameter(stop: str) -> re.Pattern[str]:
    return re.compile(rf"([?&;#])([^?&;#=/{stop}]+)=([^&{stop}]*)")


_IN_TEXT = (_user(r"\s\""), _parameter(r"\s\"<>"))
_WHOLE = (_user(""), _parameter(""))
_ENCODED_USER = re.compile(r"(%3A%2F%2F)((?:(?!%2F|%3F|%23|%40)[^\s\"'&])+)(%40)", re.IGNORECASE)
_ENCODED_PARAMETER = re.compile(
    r"(%3F|%26|%3B|%23)((?:(?!%3D)[\w.%-])+?)(%3D)((?:(?!%26)[^\s\"'&<>)\]},])+)", re.IGNORECASE
)
_CONNECTION = re.compile(r"\b(AccountKey|SharedAccessKey|SharedAccessSignature)=[^;\s\"'<>)\]},]+", re.IGNORECASE)
_BEARER = re.compile(r"\b(Bearer|Basic)(\s+|%20|\+)(?=[\w.~+/=-]*[\d.])[\w.~+/-]{8,}=*", re.IGNORECASE)
_HUB_TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{20,}")
_KNOWN: dict[str, None] = {}
"""Secrets of the URIs that were opened; a message may hold them in a form that no pattern finds the end of."""
_MOST_KNOWN, _SHORTEST = 1000, 6
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_PLACEHOLDER = re.compile(rf"{re.escape(HIDDEN)}|\$\w+|\$\{{[^}}]*\}}")
_LATER = "\0"  # stands for a placeholder
_SCHEME = re.compile(r"([a-z][a-z0-9+.\-]*)://", re.IGNORECASE)
_SECRET_VARIABLE = re.compile("TOKEN|PASSWORD|PASSWD|PASSPHRASE|SECRET|KEY|CREDENTIAL", re.IGNORECASE)
_HIDDEN_USER = re.compile(rf"://([^/?#@:]*)(:?){re.escape(HIDDEN)}@")


def redact(text: str) -> str:
    """Return free text with `***` for the credentials in its URIs.

    >>> redact("reading s3://KEY:SECRET@bucket/images")
    'reading s3://***@bucket/images'
    """
    user, parameter = _IN_TEXT
    # known secrets first: a blank or a quote in one would end the match of a pattern too early
    for secret in _KNOWN:
        text = text.replace(secret, HIDDEN)
    return visible(parameter.sub(_hide_parameter, user.sub(_hide_user, _without_tokens(text))))


def visible(text: str) -> str:
    """Return text with control characters written out: a name may hold commands to a terminal.

    >>> visible(chr(27) + "[2J") == chr(92) + "x1b[2J"
    True
    """
    return _CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def redact_uri(uri: str) -> str:
    """Return a URI with `***` for its password, key and secret parameters; a path is returned as it is."""
    if "://" not in uri:
        return _without_tokens(uri)
    user, parameter = _WHOLE
    return parameter.sub(_hide_whole, user.sub(_hide_user, _without_tokens(uri)))


def remember(uri: str) -> None:
    """Have `redact` hide the secrets of a URI wherever they stand, also with blanks and quotes in them."""
    if "://" not in uri or redact_uri(uri) == uri:
        return
    user, parameter = _WHOLE
    secrets = [match[2].partition(":")[2] for match in user.finditer(uri) if match[1].lower() not in _NAMED_USERS]
    secrets += [match[3] for match in parameter.finditer(uri) if _is_secret(match[2])]
    for secret in secrets:
        # as in the URI, decoded, and as Python's repr shows it; short ones could be part of any word
        for form in (secret, unquote(secret), repr(unquote(secret))[1:-1]):
            if len(form) >= _SHORTEST and len(_KNOWN) < _MOST_KNOWN:
                _KNOWN[form] = None


def _without_tokens(text: str) -> str:
    """Hide secrets that are known by their form: percent-encoded, in a connection string, or tokens of a service."""
    if "%" in text:
        text = _ENCODED_USER.sub(rf"\1{HIDDEN}\3", text)
        text = _ENCODED_PARAMETER.sub(
            lambda match: f"{match[1]}{match[2]}{match[3]}{HIDDEN}" if _is_secret(match[2]) else match[0], text
        )
    text = _CONNECTION.sub(rf"\1={HIDDEN}", text)
    return _HUB_TOKEN.sub(f"hf_{HIDDEN}", _BEARER.sub(rf"\1\2{HIDDEN}", text))


def without_hidden(uri: str) -> str:
    """Return a URI without the parts that are `***`."""
    if HIDDEN not in uri or "://" not in uri:
        return uri
    uri = _HIDDEN_USER.sub(lambda match: f"://{match[1]}@" if match[1] else "://", uri)
    base, mark, query = uri.partition("?")
    parameters = "&".join(part for part in query.split("&") if part.partition("=")[2] != HIDDEN)
    return f"{base}{mark}{parameters}" if parameters else base


def bare_uri(uri: str) -> str:
    """Return a URI without credentials of any kind, so that it is the same for every user."""
    return without_hidden(redact_uri(uri))


def credential_scheme(uri: str) -> str | None:
    """Return the scheme of a URI that holds a credential, None for one without.

    `***` is not a credential, and neither is a variable, such as `$TOKEN`, which is read later.

    >>> credential_scheme("s3://KEY:SECRET@bucket/x"), credential_scheme("https://host/x?token=$TOKEN")
    ('s3', None)
    """
    if "://" not in uri:
        return None
    uri = _PLACEHOLDER.sub(_LATER, uri)
    user, parameter = _WHOLE
    for match in user.finditer(uri):
        name, _, password = match[2].partition(":")
        secret = (password or name) if _takes_key(match[1]) else password
        if match[1].lower() in _NAMED_USERS:
            continue
        if secret.strip(_LATER):
            return str(match[1]).lower()
    for match in parameter.finditer(uri):
        if _is_secret(match[2]) and match[3].strip(_LATER):
            return str(_SCHEME.findall(uri[: match.start()])[-1]).lower()
    return None


def redact_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables with `***` for credentials: by the variable's name, in URIs and in JSON.

    >>> redact_variables({"RAY_AUTH_TOKEN": "abc", "RAY_ADDRESS": "10.0.0.1:6379"})
    {'RAY_AUTH_TOKEN': '***', 'RAY_ADDRESS': '10.0.0.1:6379'}
    """
    return {name: _redact_named(name, value) for name, value in variables.items()}


def _redact_named(name: str, value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _redact_named(str(key), inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_redact_named(name, inner) for inner in value]
    if _SECRET_VARIABLE.search(name) and value not in ("", None):
        return HIDDEN
    if not isinstance(value, str):
        return value
    tree = _json_object(value)
    return redact(value) if tree is None else json.dumps(_redact_named("", tree))


def _json_object(text: str) -> dict[str, Any] | None:
    """Return the JSON object in a variable such as RAY_JOB_CONFIG_JSON_ENV_VAR, which holds those of a job."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        tree = json.loads(text)
    except ValueError:
        return None
    return tree if isinstance(tree, dict) else None


def redact_tree(tree: Any) -> Any:
    """Return plain settings with `***` for the credentials in their strings."""
    return each_text(tree, redact_uri)


def bare_tree(tree: Any) -> Any:
    """Return plain settings without credentials, so that they are the same for every user."""
    return each_text(tree, bare_uri)


class Redacted(logging.Filter):
    """Removes credentials from log records."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Redact a record, and let it pass."""
        message = record.getMessage()
        redacted = redact(message)
        if redacted != message:
            record.msg, record.args = redacted, None
        return True


def _hide_user(match: re.Match[str]) -> str:
    scheme, user = match[1], match[2]
    name, colon, _ = user.partition(":")
    if scheme.lower() in _NAMED_USERS:
        return match[0]
    if not user or _takes_key(scheme):
        return f"{scheme}://{HIDDEN if user else ''}@"
    return f"{scheme}://{name}{colon}{HIDDEN if colon else ''}@"


def _hide_parameter(match: re.Match[str], is_whole: bool = False) -> str:
    mark, name, value = match.groups()
    if value.startswith(f"{HIDDEN};"):  # of a connection string
        return match[0]
    if not _is_secret(name) or not value:
        # the value may hold further parameters, as that of a URI inside a URI
        hide, pattern = (_hide_whole, _WHOLE[1]) if is_whole else (_hide_parameter, _IN_TEXT[1])
        return f"{mark}{name}={pattern.sub(hide, value)}"
    # in a sentence, closing quotes, brackets and stops behind a URI are not part of it
    tail = _TAIL.search(value) if not is_whole else None
    return f"{mark}{name}={HIDDEN}{tail[0] if tail else ''}"


def _hide_whole(match: re.Match[str]) -> str:
    return _hide_parameter(match, is_whole=True)


def _takes_key(scheme: str) -> bool:
    """Whether the user part of a URI may be a key: of `git+https://` too."""
    return scheme.lower().rpartition("+")[2] in KEY_SCHEMES


def _is_secret(name: str) -> bool:
    letters = re.sub(r"[^a-z]", "", unquote(name).lower())
    return letters.endswith(_SECRETS) or letters in _SHORT_SECRETS


def each_text(tree: Any, change: Callable[[str], str]) -> Any:
    """Return a plain tree with `change` applied to its strings."""
    if isinstance(tree, str):
        return change(tree)
    if isinstance(tree, dict):
        return {key: each_text(value, change) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [each_text(value, change) for value in tree]
    return tree


def texts_in(value: Any) -> Iterator[str]:
    """Yield the strings in a plain tree, or in the fields of a dataclass."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from texts_in(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from texts_in(getattr(value, field.name))
