"""`raysl pretrain` starts a private cluster while it loads torch and its settings."""

import sys
import time
from collections.abc import Callable

import pytest
import torch  # noqa: F401 - the tests tell whether it is loaded

from raysl.cli.pretrain import _while_ray_starts
from raysl.cluster import connection
from raysl.errors import ConfigError, RunFailed


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Notes connections, which are not made; torch counts as not loaded."""
    calls: list[str] = []
    monkeypatch.setattr(connection, "connect", lambda is_needed: calls.append("connect"))
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return calls


def test_ray_starts_beside(connected: list[str]) -> None:
    assert _while_ray_starts(lambda: "settings") == "settings"
    assert connected == ["connect"]


def test_a_cluster_with_an_address_is_left_alone(connected: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert _while_ray_starts(lambda: "settings") == "settings"
    assert connected == []


def test_where_torch_is_loaded_ray_waits_for_checked_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "connect", lambda is_needed: pytest.fail("connected"))
    assert "torch" in sys.modules
    assert _while_ray_starts(lambda: "settings") == "settings"


def test_wrong_settings_are_told_whatever_becomes_of_ray(connected: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(is_needed: object) -> None:
        raise RunFailed("Ray has not started")

    def load() -> str:
        raise ConfigError("no such setting")

    def give_up(is_needed: Callable[[], bool]) -> None:
        while is_needed():
            time.sleep(0.001)
        raise RunFailed("not needed")

    monkeypatch.setattr(connection, "connect", give_up)
    with pytest.raises(ConfigError, match="no such setting"):
        _while_ray_starts(load)
    monkeypatch.setattr(connection, "connect", fail)
    assert _while_ray_starts(lambda: "settings") == "settings"
