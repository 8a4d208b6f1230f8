"""Another version of raysl is started as the present one."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from perf.recovery import measure_recovery
from perf.start import measure_start
from perf.versions import Version, versions
from raysl.errors import ConfigError

CHECKOUT = Path(__file__).parents[2]


def test_a_version_is_started_from_its_checkout_without_the_cluster_of_this_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(subprocess, "Popen", lambda command, **options: calls.append(options | {"command": command}))
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    for version in versions(CHECKOUT):
        version.start(["pretrain"], subprocess.DEVNULL)
    now, before = calls
    assert now["command"] == before["command"] == [sys.executable, "-m", "raysl", "pretrain"]
    assert (now["cwd"], before["cwd"]) == (None, CHECKOUT)
    assert now["env"] == dict(os.environ)
    assert before["env"]["PYTHONPATH"] == str(CHECKOUT)
    assert "RAY_ADDRESS" not in before["env"]


@pytest.mark.parametrize("measure", [measure_start, measure_recovery])
def test_a_folder_that_is_no_checkout_is_refused_before_anything_is_measured(measure: Any, tmp_path: Path) -> None:
    assert versions(None) == [Version()]
    with pytest.raises(ConfigError, match="git worktree add"):
        measure(beside=tmp_path)
