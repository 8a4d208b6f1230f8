"""A private cluster starts with what a run needs, and Ray of any version is used where it lacks a private part."""

import os
from types import SimpleNamespace

import pytest
import ray._private.node
import ray._private.ray_constants
import ray._private.services
import ray._private.utils
import ray._private.worker
import ray._raylet

from raysl.cluster import connection, private
from raysl.cluster.private import AT_ONCE, lacking, notice_finished_tasks, show_by, starting_fast

REPLACED = [
    (ray._private.services, ("start_api_server", "start_ray_process", "get_node", "ConsolePopen")),
    (ray._private.node.Node, ("start_monitor",)),
    (ray._private.ray_constants, ("ENABLE_RAY_CLUSTER",)),
    (ray._private.utils, ("set_sigterm_handler",)),
]


def parts() -> list[object]:
    return [getattr(owner, name) for owner, names in REPLACED for name in names]


def test_a_private_cluster_has_no_dashboard_no_monitor_and_few_processes_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    services, node = ray._private.services, ray._private.node.Node
    monkeypatch.setattr(services, "start_ray_process", lambda command, kind, fate_share: command)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    before = parts()
    with starting_fast():
        assert services.start_api_server(include_dashboard=False) == (None, None)
        assert node.start_monitor(None) is None
        command = services.start_ray_process(["raylet", "--num_prestart_python_workers=64"], "raylet", fate_share=True)
        assert command == ["raylet", f"--num_prestart_python_workers={AT_ONCE}"]
        assert not ray._private.ray_constants.ENABLE_RAY_CLUSTER
    assert parts() == before
    with starting_fast(with_state=True):
        assert services.start_api_server is before[0]


def fake_client(monkeypatch: pytest.MonkeyPatch, *tables: list[bytes]) -> None:
    answers = iter(tables)
    client = SimpleNamespace(get_all_node_info=lambda: next(answers))
    monkeypatch.setattr(ray._raylet, "GcsClient", lambda address: client)
    monkeypatch.setattr(ray._private.services, "get_node", lambda address, node: f"{node} at {address}")
    monkeypatch.setattr(private, "LOOK_EVERY_S", 0.0)


def test_a_node_is_asked_for_once_it_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_client(monkeypatch, [], [b"\x01"], [b"\x01", b"\x02"])
    with starting_fast():
        assert ray._private.services.get_node("here:1", "02") == "02 at here:1"


def test_the_wait_for_a_node_ends_when_it_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_client(monkeypatch, [])
    with starting_fast(lambda: False), pytest.raises(InterruptedError):
        ray._private.services.get_node("here:1", "02")


def test_plain_ray_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lacking() == []
    monkeypatch.setenv("RAYSL_PLAIN_RAY", "1")
    before = parts()
    with starting_fast():
        assert parts() == before
    assert not show_by(lambda show, data, ignore_prefix: None)
    assert len(lacking()) == 4


def test_a_part_that_this_version_of_ray_lacks_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    for owner, names in REPLACED:
        for name in names:
            monkeypatch.delattr(owner, name)
    with starting_fast():
        pass
    monkeypatch.delattr(ray._private.worker, "print_to_stdstream")
    assert not show_by(lambda show, data, ignore_prefix: None)
    assert lacking() == ["fast start", "quiet output"]


def test_what_ray_prints_goes_to_the_last_one_who_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr(
        ray._private.worker, "print_to_stdstream", lambda data, ignore_prefix: shown.append(data["lines"])
    )
    assert show_by(lambda show, data, ignore_prefix: None)
    assert show_by(lambda show, data, ignore_prefix: show({"lines": data["lines"] * 2}, ignore_prefix))
    ray._private.worker.print_to_stdstream({"lines": ["a"]}, False)
    assert shown == [["a", "a"]]


def test_ray_data_looks_often_for_finished_tasks() -> None:
    from ray.data._internal.execution import streaming_executor_state

    notice_finished_tasks()
    assert streaming_executor_state.WAIT_FOR_TASK_COMPLETION_TIMEOUT_S == private.LOOK_EVERY_S


def test_processes_of_a_private_cluster_get_only_variables_that_have_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_inherited", {"A": "1", "B": "2"})
    monkeypatch.setattr(connection, "is_private", lambda: True)
    assert connection.not_inherited({"A": "1", "B": "3", "C": "4"}) == {"B": "3", "C": "4"}
    monkeypatch.setattr(connection, "is_private", lambda: False)
    assert connection.not_inherited({"A": "1"}) == {"A": "1"}
