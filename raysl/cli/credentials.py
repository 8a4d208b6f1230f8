"""Refuses credentials on the command line, which Ray's job list, its logs and `ps` show."""

import os

from raysl.errors import ConfigError
from raysl.process.environment import JOB_VARIABLE
from raysl.redact import credential_scheme, redact_uri

_AWS = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
_GOOGLE = "GOOGLE_APPLICATION_CREDENTIALS"
_AZURE = "AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET"
_AZURE_ACCOUNT = "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY"
_VARIABLES = {
    **dict.fromkeys(("s3", "s3a", "s3n"), _AWS),
    **dict.fromkeys(("gs", "gcs"), _GOOGLE),
    **dict.fromkeys(("abfs", "abfss"), _AZURE),
    **dict.fromkeys(("az", "adl", "wasb", "wasbs"), _AZURE_ACCOUNT),
    "hf": "HF_TOKEN",
}
"""Environment variables that the file system of a scheme reads."""


def refuse_credentials(arguments: list[str]) -> None:
    """Refuse URIs with a key, password or token among the words of a command."""
    lines = [_describe(word, scheme) for word in arguments if (scheme := credential_scheme(word)) is not None]
    if lines:
        raise ConfigError("\n".join(lines))


def _describe(word: str, scheme: str) -> str:
    if variables := _VARIABLES.get(scheme):
        advice = f"leave it out and set {variables} on each node"
    else:
        advice = "write it as $NAME in a configuration file and export NAME where the command runs"
    seen = "; Ray's job list shows this one already, so replace it with a new one" if JOB_VARIABLE in os.environ else ""
    return f"{redact_uri(word)!r} holds a credential, and a command line is no secret; {advice}{seen}"
