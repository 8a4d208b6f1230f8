"""What raysl says of the machine it runs on, and how it sets up a process."""

import json
import logging
import os
import platform
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import raysl
from raysl import cli
from raysl import distributed as dist
from raysl.config.load import load_config
from raysl.errors import ConfigError
from raysl.process import environment as module
from raysl.process.environment import environment, environment_text, problems
from raysl.train import process

pytestmark = pytest.mark.cluster  # git is asked for the revision

KEYS = {
    "python", "executable", "system", "packages", "torch", "devices", "driver", "cpu", "memory", "disk", "shm", "git",
    "variables",
}  # fmt: skip


@pytest.fixture(autouse=True)
def log_as_before() -> Iterator[None]:
    log = logging.getLogger("raysl")
    before = log.level, log.propagate, list(log.handlers)
    is_benchmark = torch.backends.cudnn.benchmark
    yield
    log.level, log.propagate, log.handlers = before
    torch.backends.cudnn.benchmark = is_benchmark
    log.setLevel(before[0])


def run(words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setattr(sys, "argv", ["raysl", *words])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert not caught.value.code
    return capsys.readouterr().out


def test_the_environment_is_that_of_this_process() -> None:
    found = environment()
    assert set(found) == KEYS
    assert found["python"] == platform.python_version()
    assert found["packages"]["torch"] == version("torch")
    assert found["packages"]["raysl"] == raysl.__version__
    assert found["torch"]["threads"] == torch.get_num_threads()
    assert found["torch"]["cuda"] == torch.version.cuda
    assert len(found["devices"]) == torch.cuda.device_count()
    assert 1 <= found["cpu"]["usable"] <= found["cpu"]["cores"] == os.cpu_count()
    assert 0 < found["memory"]["free"] < found["memory"]["total"]


def test_json_and_lines_hold_the_same(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    told = json.loads(run(["doctor", "--env", "--json"], monkeypatch, capsys))
    assert set(told) == KEYS | {"problems", "cluster"}
    assert told["cluster"] is None, "nothing is asked without RAY_ADDRESS"
    lines = dict(line.split(None, 1) for line in run(["doctor", "--env"], monkeypatch, capsys).splitlines() if line)
    assert lines["python"] == told["python"]
    assert {name for name in told["packages"] if name in lines} == set(told["packages"])
    assert run(["doctor"], monkeypatch, capsys).count("\n") == max(1, len(told["problems"]))


def test_credentials_in_variables_are_hidden_and_others_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_STORAGE", "s3://AKIAKEY:secret@bucket/x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "hush")
    monkeypatch.setenv("RAY_REDIS_PASSWORD", "hush")
    told = environment()["variables"]
    assert told["RAY_AUTH_TOKEN"] == told["RAY_REDIS_PASSWORD"] == "***"
    assert told["RAY_STORAGE"] == "s3://***@bucket/x"
    assert "hush" not in str(told)


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    return subprocess.run(["git", "-C", str(folder), *who, *words], capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_the_revision_of_a_checkout_and_whether_it_is_changed(tmp_path: Path) -> None:
    assert module._git(tmp_path) is None
    git(tmp_path, "init", "-q")
    assert module._git(tmp_path) is None  # nothing is committed
    (tmp_path / "a").write_text("1")
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "-qm", "a")
    revision = git(tmp_path, "rev-parse", "HEAD").strip()
    assert module._git(tmp_path) == {"folder": str(tmp_path), "revision": revision, "is_changed": False}
    (tmp_path / "a").write_text("2")
    state: Any = module._git(tmp_path)
    assert state["is_changed"]
    assert environment_text({**environment(), "git": state}).count(f"{revision}, changed") == 1


def test_what_is_likely_to_go_wrong_is_told() -> None:
    sound = environment() | {
        "devices": [], "driver": None, "memory": {"total": 8.0, "free": 4.0}, "disk": {"total": 9.0, "free": 5.0},
        "shm": {"total": 4.0, "free": 4.0}, "cpu": {"model": "x", "cores": 64, "usable": 64},
    }  # fmt: skip
    assert problems(sound) == []
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"driver": "NVRM 560", "torch": {**sound["torch"], "cuda": None}}, "torch is built without CUDA"),
        ({"driver": "NVRM 560", "torch": {**sound["torch"], "cuda": "13.2"}}, "is built for CUDA 13.2 and sees none"),
        ({"shm": {"total": 0.06, "free": 0.06}}, "/dev/shm holds 0.1 of 8.0 GiB"),
        ({"disk": {"total": 9.0, "free": 0.5}}, "0.50 GiB of the disk here are free"),
        ({"cpu": {"model": "x", "cores": 64, "usable": 0}}, "usable core"),
        ({"packages": {**sound["packages"], "ray": None}}, "ray is not installed; pip install ray"),
    ]
    for change, told in wrong:
        (line,) = problems(sound | change)
        assert told in line


def test_a_setup_seeds_by_seed_and_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn(**words: Any) -> tuple[float, float, float]:
        raysl.setup(show_environment=False, **words)
        return torch.rand(()).item(), float(np.random.rand()), random.random()

    first = drawn(seed=3)
    assert drawn(seed=3) == first
    assert drawn(config=load_config("quickstart", ["seed=3"])) == first
    assert drawn(seed=4) != first
    monkeypatch.setattr(dist, "rank", lambda: 1)
    assert not set(drawn(seed=3)) & set(first)


def test_lines_of_ranks_begin_with_the_rank(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = logging.getLogger("raysl")
    raysl.setup(show_environment=False)
    raysl.setup(show_environment=False)
    log.info("alone, at s3://KEY:SECRET@bucket")
    told = capsys.readouterr().err
    assert told.count("alone") == 1  # the second call took the place of the first
    assert told.endswith("INFO alone, at s3://***@bucket\n")
    monkeypatch.setattr(dist, "rank", lambda: 1)
    monkeypatch.setattr(dist, "world", lambda: 4)
    raysl.setup(level="DEBUG")
    log.info("not heard")
    log.warning("heard")
    told = capsys.readouterr().err
    assert told.endswith("[1/4] WARNING heard\n")
    assert "not heard" not in told
    assert "environment" not in told


def test_rank_0_shows_the_environment(capsys: pytest.CaptureFixture[str]) -> None:
    found = raysl.setup(level=logging.INFO)
    assert set(found) == KEYS
    told = dict(line.split(None, 1) for line in capsys.readouterr().err.splitlines())
    assert told["python"] == platform.python_version()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"seed": -1}, "seed -1 is not a seed; give a whole number from 0 to 4294967295"),
        ({"seed": True}, "seed True is not a seed"),
        ({"level": "LOUD"}, "level 'LOUD' is not a level of the log; give one of"),
        ({"config": "quickstart"}, "config: .* settings, as raysl.load_config gives them"),
    ],
)
def test_bad_arguments_of_a_setup_are_refused(words: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        raysl.setup(**words)


def test_kernels_repeat_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(torch, "use_deterministic_algorithms", lambda mode, warn_only: asked.append(mode))
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    process.repeat_kernels(False)
    assert (asked, torch.backends.cudnn.benchmark) == ([], True)
    raysl.setup(load_config("quickstart", ["train.deterministic=true"]), show_environment=False)
    assert (asked, torch.backends.cudnn.benchmark) == ([True], False)
    assert os.environ.pop("CUBLAS_WORKSPACE_CONFIG") == ":4096:8"
