"""Credentials in forms that a stranger's server, a user's haste or another service gives them."""

from collections.abc import Iterator

import pytest

from raysl import redact as module
from raysl.redact import credential_scheme, redact, redact_uri, remember


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    before = dict(module._KNOWN)
    yield
    module._KNOWN.clear()
    module._KNOWN.update(before)


@pytest.mark.parametrize("name", ["key", "pass", "pw", "jwt", "code", "session", "token_v2", "session_id", "KEY"])
def test_short_names_of_secrets_are_hidden(name: str) -> None:
    for mark in ("?", "?a=1&", "#", "?a=1#", "?a=1;"):
        uri = f"https://host/x{mark}{name}=SeCrEt7"
        assert "SeCrEt7" not in redact_uri(uri), uri
        assert "SeCrEt7" not in redact(f"cannot open {uri!r}: no rights"), uri
        assert credential_scheme(uri) == "https" or mark in ("?a=1#", "?a=1;")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("git+https://ghpToken@host/x", "git+https://***@host/x"),
        ("oss://KEY:SECRET@bucket/x", "oss://***@bucket/x"),
        ("cos://KEY:SECRET@bucket/x", "cos://***@bucket/x"),
        ("swift://KEY:SECRET@bucket/x", "swift://***@bucket/x"),
        ("lakefs://KEY:SECRET@repo/main", "lakefs://***@repo/main"),
        ("github://org:repo@sha/x", "github://org:repo@sha/x"),
        (
            "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=Zm9v+/==;EndpointSuffix=core.windows.net",
            "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=***;EndpointSuffix=core.windows.net",
        ),
        ("AccountKey=Zm9v+/==", "AccountKey=***"),
        ("hf_abcdefghijklmnopqrstuvwxyz012345", "hf_***"),
        ("Authorization: Bearer eyJhbGci.eyJzdWIi.sig", "Authorization: Bearer ***"),
        ("https://h/x?url=https%3A%2F%2Fme%3Apw7%40host%2Fy", "https://h/x?url=https%3A%2F%2F***%40host%2Fy"),
        ("https://h/x?url=https%3A%2F%2Fh%3Ftoken%3DSeCrEt", "https://h/x?url=https%3A%2F%2Fh%3Ftoken%3D***"),
        ("https://h/x?to%6Ben=SeCrEt", "https://h/x?to%6Ben=***"),
    ],
)
def test_secrets_are_known_by_their_form(text: str, shown: str) -> None:
    assert redact_uri(text) == redact(text) == shown
    assert redact(f"({text})") == f"({shown})"


@pytest.mark.parametrize(
    "text",
    [
        "the bearer of this token is unknown",
        "Basic settings of the run",
        "hf_dataset_name",
        "100 % of 3 images; key=5",
        "data.name=parquet, optim.lr=0.3; see https://host/a#section",
        "https://host/x?monkey=1&encode=2&passes=3",
    ],
)
def test_plain_words_stay(text: str) -> None:
    assert redact(text) == redact_uri(text) == text


@pytest.mark.parametrize("secret", ["Se Cr'Et7", 'Se"Cr Et7', "Se\tCr#Et7", "Se%20CrEt7"])
def test_a_secret_with_a_blank_or_a_quote_is_hidden_once_its_uri_was_opened(secret: str) -> None:
    for uri in (f"s3://KEYID:{secret}@bucket/x", f"https://host/x?token={secret}"):
        remember(uri)
        for text in (f"no answer from {uri}", f"no answer from {uri!r}", f"refused {secret!r}", f"refused {secret}"):
            assert "Et7" not in redact(text), text
