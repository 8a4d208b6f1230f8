"""A private cluster starts with what a run needs."""

import os

import pytest
import ray._private.node
import ray._private.services
import ray._private.state

from raysl.cluster import connection
from raysl.cluster.private import AT_ONCE, NotNeeded, looking_often, starting_less


def test_a_private_cluster_has_no_dashboard_no_monitor_and_few_processes_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    services, node = ray._private.services, ray._private.node.Node
    monkeypatch.setattr(services, "start_ray_process", lambda command, kind, fate_share: command)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    before = (services.start_api_server, services.start_ray_process, services.get_node, node.start_monitor)
    with starting_less():
        assert services.start_api_server(include_dashboard=False) == (None, None)
        assert node.start_monitor(None) is None
        command = services.start_ray_process(["raylet", "--num_prestart_python_workers=64"], "raylet", fate_share=True)
        assert command == ["raylet", f"--num_prestart_python_workers={AT_ONCE}"]
    assert (services.start_api_server, services.start_ray_process, services.get_node, node.start_monitor) == before


def test_a_node_is_asked_for_once_it_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = iter([[], [{"NodeID": "other"}], [{"NodeID": "other"}, {"NodeID": "own"}]])
    monkeypatch.setattr(ray._private.services, "get_node", lambda address, node: f"{node} at {address}")
    monkeypatch.setattr(ray._private.services, "_get_gcs_client_options", lambda address: address)
    monkeypatch.setattr(ray._private.state.GlobalState, "_initialize_global_state", lambda self, options: None)
    monkeypatch.setattr(ray._private.state.GlobalState, "node_table", lambda self: next(tables))
    monkeypatch.setattr("raysl.cluster.private.LOOK_EVERY_S", 0.0)
    with looking_often():
        assert ray._private.services.get_node("here:1", "own") == "own at here:1"
    assert list(tables) == []


def test_the_wait_for_a_node_ends_when_it_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray._private.services, "_get_gcs_client_options", lambda address: address)
    monkeypatch.setattr(ray._private.state.GlobalState, "_initialize_global_state", lambda self, options: None)
    monkeypatch.setattr(ray._private.state.GlobalState, "node_table", lambda self: [])
    with looking_often(lambda: False), pytest.raises(NotNeeded):
        ray._private.services.get_node("here:1", "own")


def test_processes_of_a_private_cluster_get_only_variables_that_have_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_inherited", {"A": "1", "B": "2"})
    monkeypatch.setattr(connection, "is_private", lambda: True)
    assert connection.not_inherited({"A": "1", "B": "3", "C": "4"}) == {"B": "3", "C": "4"}
    monkeypatch.setattr(connection, "is_private", lambda: False)
    assert connection.not_inherited({"A": "1"}) == {"A": "1"}
