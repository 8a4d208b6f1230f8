"""Workers meet in a process group of torch, and leave it."""

from typing import Any

import pytest
import ray
from ray.exceptions import GetTimeoutError, OutOfMemoryError, RayActorError

from raysl.runs.process_group import Meeting, ProcessGroup


class Group:
    """A group of two workers that notes what is sent to them."""

    def __init__(self) -> None:
        self.sent: list[tuple[Any, ...]] = []

    def __len__(self) -> int:
        return 2

    def execute_single(self, rank: int, function: Any) -> tuple[str, int]:
        assert (rank, function.__name__) == (0, "_free_address")
        return "10.0.0.1", 4000

    def execute_single_async(self, rank: int, function: Any, *arguments: Any) -> str:
        self.sent.append((rank, function.__name__, *arguments))
        return "met"

    def execute_async(self, function: Any) -> list[str]:
        self.sent.append((function.__name__,))
        return ["left"] * 2


def test_all_workers_meet_at_an_address_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "get", lambda references, timeout=None: references)
    group = Group()
    Meeting().on_start(group, ProcessGroup(backend="nccl", timeout_s=90))
    assert group.sent == [(rank, "_meet", "nccl", "10.0.0.1", 4000, 90) for rank in range(2)]


@pytest.mark.parametrize("error", [OutOfMemoryError("killed"), RayActorError(), GetTimeoutError("hangs")])
def test_a_group_ends_whatever_has_become_of_its_workers(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def get(references: Any, timeout: float | None = None) -> None:
        assert timeout == 5.0
        raise error

    monkeypatch.setattr(ray, "get", get)
    group = Group()
    Meeting().on_shutdown(group, ProcessGroup())
    assert group.sent == [("_leave",)]
