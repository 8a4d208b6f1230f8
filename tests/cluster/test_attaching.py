"""RAY_ADDRESS: its form, and clusters with and without tokens, on real heads."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from raysl.cluster.attaching import check_address
from raysl.cluster.connection import connect
from raysl.errors import ConfigError
from tests.ray_nodes import client_environment, end_node, free_ports, start_node, wait_for_line

ATTACH = """
import os
from raysl.cluster.connection import connect
from raysl.errors import ConfigError
import ray
try:
    connect()
    print("attached:", ray.cluster_resources()["CPU"], os.environ.get("RAY_AUTH_MODE"))
except ConfigError as error:
    print("refused:", error)
"""
MODES = ("token", "disabled")


@pytest.mark.parametrize(
    "address", ["foo:bar", "foo", "10.0.0.1", "10.0.0.1:", ":6379", "10.0.0.1:70000", "10.0.0.1:0", "ray://h:10001"]
)
def test_an_address_of_another_form_is_refused_by_its_name(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(os, "environ", {**os.environ, "RAY_ADDRESS": address})
    with pytest.raises(ConfigError, match=r"is no address of a cluster; write host:port, such as .*, or auto") as told:
        connect()
    assert str(told.value).startswith(f"RAY_ADDRESS={address} is")


def test_names_numbers_and_auto_are_addresses() -> None:
    for address in ("head.example:6379", "10.0.0.1:6379", "[::1]:6379", "auto"):
        check_address(address)


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Addresses of a cluster that wants a token and of one that has none."""
    folder = tmp_path_factory.mktemp("heads")
    sessions = {mode: tempfile.mkdtemp(prefix="ray_") for mode in MODES}
    ports = dict(zip(MODES, free_ports(2), strict=True))
    token = folder / "token"
    token.write_text("a" * 64)
    started = []
    try:
        for mode in MODES:
            words = ("--head", "--num-cpus=1", f"--port={ports[mode]}", f"--temp-dir={sessions[mode]}")
            words += ("--include-dashboard=false", "--object-store-memory=100000000")
            variables = {"RAY_AUTH_MODE": mode, "RAY_AUTH_TOKEN_PATH": str(token)}
            started.append(start_node(*words, log=folder / f"{mode}.log", environment=variables))
        for mode, process in zip(MODES, started, strict=True):
            wait_for_line("Ray runtime started", folder / f"{mode}.log", process)
        yield {mode: f"127.0.0.1:{port}" for mode, port in ports.items()} | {"path": str(token)}
    finally:
        for process in started:
            end_node(process)
        for session in sessions.values():
            shutil.rmtree(session, ignore_errors=True)


def attach(home: Path, address: str, **variables: str) -> str:
    """What a new process says that attaches with these variables; nothing of it on stderr."""
    names = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
    environment = {name: value for name, value in client_environment().items() if name not in names}
    environment |= {"HOME": str(home), "RAY_ADDRESS": address, **variables}
    done = subprocess.run(
        [sys.executable, "-c", ATTACH], capture_output=True, text=True, timeout=120, env=environment, cwd=home
    )
    assert done.stderr == "", "Ray's core shows nothing"
    assert done.returncode == 0
    return done.stdout.strip()


@pytest.mark.cluster
def test_a_cluster_with_tokens_is_attached_to_without_a_mode(heads: dict[str, str], tmp_path: Path) -> None:
    address = heads["token"]
    assert attach(tmp_path, address, RAY_AUTH_TOKEN_PATH=heads["path"]) == "attached: 1.0 token"
    (tmp_path / ".ray").mkdir()
    shutil.copy(heads["path"], tmp_path / ".ray" / "auth_token")
    assert attach(tmp_path, address) == "attached: 1.0 token"


@pytest.mark.cluster
def test_a_cluster_without_tokens_is_attached_to_with_a_token_at_hand(heads: dict[str, str], tmp_path: Path) -> None:
    address = heads["disabled"]
    assert attach(tmp_path, address) == "attached: 1.0 None"
    assert attach(tmp_path, address, RAY_AUTH_TOKEN_PATH=heads["path"]) == "attached: 1.0 None"
    assert attach(tmp_path, address, RAY_AUTH_TOKEN="b" * 64, RAY_AUTH_MODE="token") == "attached: 1.0 token"


@pytest.mark.cluster
def test_a_token_that_is_missing_or_wrong_is_told_in_a_line(heads: dict[str, str], tmp_path: Path) -> None:
    address = heads["token"]
    wanted = (
        f"refused: the cluster at {address} wants a token: set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN or "
        "RAY_AUTH_TOKEN_PATH as on its head"
    )
    assert attach(tmp_path, address) == wanted
    assert attach(tmp_path, address, RAY_AUTH_TOKEN="b" * 64) == wanted
    assert attach(tmp_path, address, RAY_AUTH_TOKEN="b" * 64, RAY_AUTH_MODE="token") == wanted
    assert attach(tmp_path, address, RAY_AUTH_TOKEN_PATH=heads["path"], RAY_AUTH_MODE="disabled") == wanted
    missing = attach(tmp_path, address, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH="/nonexistent/token")
    assert missing.startswith(
        "refused: RAY_AUTH_MODE=token needs a token and RAY_AUTH_TOKEN_PATH=/nonexistent/token holds none: set"
    )
