"""The command line in the process of the tests."""

import sys
from collections.abc import Callable

import pytest

from raysl import cli

Console = Callable[..., tuple[int, str, str]]


@pytest.fixture
def console(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Console:
    """Runs `raysl` with arguments; gives exit code, stdout and stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["raysl", *arguments])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        printed = capsys.readouterr()
        return int(caught.value.code or 0), printed.out, printed.err

    return run
