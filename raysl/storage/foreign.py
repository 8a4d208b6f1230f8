"""Addresses that others may have written: which of them are opened without a word of the user.

A checkpoint's settings and a list of images come from anywhere. What opens a URI may do more than read it: some clients
of fsspec render templates, chain to other clients or start a program, and a parameter sends a signed request to any
host. So such a URI is opened only if its scheme, its host and its parameters are known to do no more than read.
"""

from urllib.parse import parse_qsl, urlsplit

from raysl.errors import ConfigError

READ_ONLY = {
    "file": frozenset[str](),
    "s3": frozenset({"region"}),
    "gs": frozenset({"retry_limit_seconds"}),
    "gcs": frozenset({"retry_limit_seconds"}),
    "abfs": frozenset[str](),
    "abfss": frozenset[str](),
    "az": frozenset[str](),
    "memory": frozenset[str](),
    "hf": None,
    "http": None,
    "https": None,
}
"""Schemes, and the parameters that a URI of each may have; None: any, which only the host in the URI reads."""
AZURE = ("abfs", "abfss", "az")
AZURE_HOST = ".core.windows.net"
WITHHELD = "untrusted:"
"""Precedes a URI of a checkpoint's settings that is not opened; `raysl.storage.addresses` refuses it."""


def problem(uri: str) -> str | None:
    """Say why a URI that others may have written is not opened; None if it is, and for local paths.

    >>> problem("s3://bucket/images?region=eu-west-1")
    >>> problem("reference://::file:///refs.json")
    'chains clients with ::'
    """
    if "://" not in uri:
        return None
    if "::" in uri:
        return "chains clients with ::"
    parts = urlsplit(uri)
    if parts.scheme not in READ_ONLY:
        return f"has the scheme {parts.scheme}://" if parts.scheme else None
    host = (parts.hostname or "").lower()
    # without a dot it is the name of a container; with one it is a server, which could be anybody's
    if parts.scheme in AZURE and "." in host and not host.endswith(AZURE_HOST):
        return f"names the host {host}"
    if parts.scheme == "file" and parts.hostname:
        return f"names the host {host}"
    if (allowed := READ_ONLY[parts.scheme]) is not None:
        for key, value in parse_qsl(parts.query, keep_blank_values=True):
            # `***` stands for a credential that was hidden when settings were stored; it is left out on opening
            if value != "***" and key not in allowed:
                return f"has the parameter {key}="
    return None


def check_listed(uri: str, origin: str) -> None:
    """Refuse a URI that a list of images names, unless it is only read."""
    reason = problem(uri)
    if reason is not None:
        raise ConfigError(
            f"{origin} lists {uri!r}, which {reason}: of a list only plain {known()} URIs are opened; list paths below "
            "a folder, and give that folder yourself, for a list of files as data.root="
        )


def check_withheld(uri: str) -> None:
    """Refuse a URI that a checkpoint's settings name and that is not opened."""
    if uri.startswith(WITHHELD):
        inner = uri.removeprefix(WITHHELD)
        raise ConfigError(
            f"the checkpoint's settings name {inner!r}, which {problem(inner)}: of a checkpoint only plain {known()} "
            "URIs are opened; give the setting anew, or, if you trust the checkpoint, say trust_code=True, on the "
            "command line --trust-code"
        )


def known() -> str:
    """Name the schemes that are opened."""
    return ", ".join(READ_ONLY)
