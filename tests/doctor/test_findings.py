"""What `raysl doctor` makes of what nodes say, each with what helps."""

import threading
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from raysl import cli
from raysl.cluster.waiting_for_nodes import describe_used
from raysl.doctor import findings
from raysl.doctor import storage as storage_module
from raysl.doctor.cluster import Answer, Node, patience
from raysl.doctor.node import node_facts
from raysl.doctor.storage import StorageProbe, look_at_storage
from tests.console import Console

DRIVER = {
    "python": "3.11.7",
    "packages": {"ray": "2.60.0", "torch": "2.15.0", "raysl": "0.1.0"},
    "code": "aaa",
    "driver": None,
    "devices": 0,
    "memory": {"total": 16.0, "free": 8.0},
    "shm": {"total": 8.0, "free": 8.0},
    "cores": 8,
    "load": 1.5,
    "lacking": [],
}
CLOCK = {"clock_s": 0.012, "clock_bound_s": 0.004}
NODE = Node("4f2a91ff", "10.0.0.2", is_head=False, cpus=8.0, gpus=0.0, object_store=4.0)
SUMS = {"nodes": 2, "backend": "gloo", "latency_ms": 1.25, "seconds": 0.06712, "gb_per_s": 1.0}


def problems(node: Node = NODE, **change: Any) -> list[str]:
    return findings.of_node(findings.describe(node, Answer(DRIVER | CLOCK | change)), DRIVER)


def test_a_node_like_this_machine_has_no_finding() -> None:
    assert problems() == []
    assert problems(python="3.11.9") == []
    assert problems(clock_s=-4.0, clock_bound_s=2.5) == [], "nobody knows that it is more than 2 s"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"python": "3.12.1"}, "runs Python 3.12.1, this machine 3.11.7; install the same on both"),
        (
            {"packages": DRIVER["packages"] | {"torch": "2.14.0"}},
            "has torch 2.14.0, this machine 2.15.0; install torch",
        ),
        (
            {"packages": DRIVER["packages"] | {"raysl": None}},
            "has no raysl; install raysl 0.1.0 on it, or submit a job",
        ),
        ({"code": "bbb"}, "has other code of raysl 0.1.0 than this machine"),
        ({"driver": "NVIDIA 560", "devices": 4}, "has 4 GPUs and offers none to Ray; start it with --num-gpus"),
        ({"memory": {"total": 16.0, "free": 0.5}}, "has 0.5 GiB of memory left; end other processes"),
        ({"shm": {"total": 0.06, "free": 0.06}}, "start its container with --shm-size"),
        ({"clock_s": -30.0}, "has a clock 30.0 s behind this machine's; run chrony or ntpd"),
        ({"clock_s": 5.0}, "has a clock 5.0 s ahead of this machine's"),
        ({"node": Node("4f2a91ff", "10.0.0.2", False, 8.0, 0.0, 0.07)}, "--object-store-memory=2000000000 or more"),
        (
            {
                "node": Node("4f2a91ff", "10.0.0.2", False, 8.0, 1.0, 4.0),
                "packages": DRIVER["packages"] | {"torch": "2.15.0+cpu"},
            },
            "has 1 GPU and torch 2.15.0+cpu, which uses none; install one for CUDA",
        ),
    ],
)
def test_a_finding_names_the_node_and_what_helps(change: dict[str, Any], told: str) -> None:
    lines = problems(**change)
    assert all(line.startswith("node 10.0.0.2 (4f2a91) ") for line in lines)
    assert any(told in line for line in lines)


def test_a_node_without_an_answer_and_nodes_that_cannot_meet_are_findings() -> None:
    late = findings.describe(NODE, Answer(error="no answer within 20 s", is_late=True))
    (line,) = findings.of_node(late, DRIVER)
    assert line.startswith("node 10.0.0.2 (4f2a91): no answer within 20 s; look at its load")
    (line,) = findings.of_sums(Answer(error="no answer within 45 s", is_late=True))
    assert "open all TCP ports between them" in line
    (line,) = findings.of_sums(Answer(SUMS | {"gb_per_s": 0.01}))
    assert line.startswith("the network between nodes sends 0.01 GB/s; take nodes with a faster one")
    assert findings.of_sums(Answer(SUMS)) == []


def test_what_does_not_answer_on_a_node_with_more_processes_than_cores_names_its_load() -> None:
    late = Answer(error="no answer within 90 s", is_late=True)
    idle, full = (findings.describe(NODE, Answer(DRIVER | CLOCK | {"load": load})) for load in (15.0, 28.4))
    gone = findings.describe(NODE, Answer(error="no answer within 20 s", is_late=True))
    assert findings.busy_nodes([idle, gone]) == ""
    busy = findings.busy_nodes([idle, full])
    wanted = "node 10.0.0.2 (4f2a91) has a load of 28 on 8 cores; end what else runs there, or try again later"
    assert findings.of_images(late, busy) == [f"no images come through Ray Data: no answer within 90 s; {wanted}"]
    assert findings.of_sums(late, busy) == [f"nodes cannot sum tensors together: no answer within 90 s; {wanted}"]
    (line,) = findings.of_images(late)
    assert line.endswith("no answer within 90 s; end what holds the CPUs, or look at `ray status`")
    assert patience([idle, full]) == 28.4 / 8
    assert (patience([]), patience([idle]), patience([full | {"load": 900.0}])) == (1.0, 15 / 8, 4.0)


def test_a_storage_that_nodes_do_not_share_names_them() -> None:
    good = {"sees": True, "read": 100.0, "write": 50.0, "arrives": True}
    names = {"a": "10.0.0.1", "b": "10.0.0.2"}
    assert findings.of_storage("/runs", names, {"a": good, "b": good}) == []
    (line,) = findings.of_storage("s3://K:S@runs", names, {"a": good, "b": {"sees": False, "arrives": False}})
    assert line.startswith("storage s3://***@runs is another folder on the node 10.0.0.2 than on this machine")
    (line,) = findings.of_storage("/runs", names, {"a": good | {"arrives": False}, "b": good})
    assert "files from the node 10.0.0.1 are not seen here" in line
    refused = {"sees": False, "error": "no rights", "arrives": False}
    (line,) = findings.of_storage("/runs", names, {"b": refused})
    assert line == "storage /runs from the node 10.0.0.2: no rights"
    (line,) = findings.of_storage("/runs", names, {"a": refused, "b": refused})
    assert line == "storage /runs from the nodes 10.0.0.1, 10.0.0.2: no rights"


def test_an_autoscaler_that_cannot_add_a_node_is_a_finding() -> None:
    growth = {"cpus": 64.0, "gpus": 8.0, "origin": "cluster.yaml", "problem": ""}
    assert findings.of_growth(growth) == findings.of_growth(None) == []
    (line,) = findings.of_growth(growth | {"problem": "no quota"})
    assert line.startswith("the autoscaler could not add a node: no quota; look at the rights and quotas")


def test_the_lines_of_a_cluster_say_what_was_seen() -> None:
    seen = {
        "address": "10.0.0.1:6379",
        "nodes": [findings.describe(NODE, Answer(DRIVER | CLOCK))],
        "growth": {"cpus": 64.0, "gpus": 8.0, "origin": "cluster.yaml", "problem": "no quota"},
        "all_reduce": SUMS,
        "images": {"images_per_s": 1234.5, "cpus": 8.0},
        "notes": ["no storage was looked at"],
    }
    assert findings.cluster_text(seen).splitlines() == [
        "cluster     10.0.0.1:6379: 1 node, 8 CPUs, 0 GPUs",
        "may grow    to 64 CPUs, 8 GPUs, by cluster.yaml",
        "node        10.0.0.2 (4f2a91): 8 CPUs, 0 GPUs, object store 4.0 GiB, load 1.5 on 8 cores, "
        "8.0 of 16.0 GiB of memory free, /dev/shm 8.0 GiB, "
        "clock +0.012 s ± 0.004, Python 3.11.7, ray 2.60.0, torch 2.15.0, raysl 0.1.0",
        "sums        over 2 nodes by gloo: one number in 1.25 ms, 64 MiB in 0.067 s, 1.00 GB/s; the gradients of a "
        "ResNet-50 would take 0.10 s a step",
        "images      1,234/s decoded and cropped by 8 CPUs",
        "note        no storage was looked at",
    ]


def test_a_node_says_what_raysl_goes_without_in_its_ray() -> None:
    node = findings.describe(NODE, Answer(DRIVER | CLOCK | {"lacking": ["fast start", "quiet output"]}))
    seen = {"address": "a:1", "nodes": [node], "growth": None, "all_reduce": None, "images": None, "notes": []}
    assert findings.cluster_text(seen).endswith("raysl 0.1.0, Ray without fast start, quiet output")


def test_cpus_in_use_name_the_run_and_the_command_that_stops_it() -> None:
    used = describe_used(3.0, ["mine of the Ray job raysubmit_7"])
    line = findings.at_work(f"of 4 CPUs, {used}")
    assert line.startswith(
        "of 4 CPUs, 3 are in use by other work (run mine of the Ray job raysubmit_7): wait for it, or "
    )
    assert "stop it by `ray job stop raysubmit_7`" in line
    assert "Ctrl-C where it was started" in findings.at_work(describe_used(1.0, ["b"]))
    late = Answer(error="no answer within 93 s", is_late=True)
    assert findings.of_images(late, line) == [f"no images come through Ray Data: no answer within 93 s; {line}"]


@pytest.mark.thorough
def test_a_storage_has_one_line_and_the_last_line_says_how_many_problems_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for name, value in {"environment": dict, "problems": lambda facts: []}.items():
        monkeypatch.setattr(f"raysl.process.environment.{name}", value)
    (tmp_path / "file").write_text("")
    for name, last in [
        ("", "no problem found: nothing stands in the way of a run"),
        ("/file", "1 problem found, and nothing else stands in the way of a run"),
    ]:
        lines = CliRunner().invoke(cli.app, ["doctor", f"storage={tmp_path}{name}"]).output.splitlines()
        assert len([line for line in lines if str(tmp_path) in line]) == 1
        assert lines[-1] == last


def test_the_facts_of_this_machine_are_those_of_a_node() -> None:
    assert set(node_facts()) == set(DRIVER)


@pytest.mark.thorough
def test_without_a_cluster_a_storage_is_looked_at_from_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, console: Console
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    seen = look_at_storage(str(tmp_path))
    assert seen["problems"] == []
    assert seen["driver"]["read"] > 0
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    (line,) = look_at_storage(str(tmp_path / "file"))["problems"]
    assert line.startswith(f"storage {tmp_path}/file from this machine: cannot create")
    for word, told in [
        ("data.path=/x", "raysl doctor takes storage=URI, not 'data.path=/x'"),
        ("storage=foo://bar", "cannot open 'foo://bar': Protocol not known: foo"),
    ]:
        code, _, err = console("doctor", word)
        assert code == 2
        assert told in err


def test_a_storage_that_does_not_exist_is_a_finding_and_leaves_nothing(tmp_path: Path) -> None:
    storage = tmp_path / "x" / "y"
    seen = look_at_storage(str(storage))
    assert seen["driver"]["read"] > 0
    assert seen["problems"] == [
        f"storage {storage} did not exist on this machine (a typo?); it was made to look at it and removed; make it, "
        "or correct storage="
    ]
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_others_use_by_now_stays(tmp_path: Path) -> None:
    with StorageProbe(str(tmp_path / "x" / "y")):
        (tmp_path / "x" / "other").mkdir()
    assert [path.name for path in (tmp_path / "x").iterdir()] == ["other"]


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """A storage that answers once the event is set, after the time in which it must."""
    is_free, speed = threading.Event(), storage_module.storage_speed

    def slow(uri: str, node: str) -> dict[str, Any]:
        is_free.wait()
        return speed(uri, node)

    monkeypatch.setattr(storage_module, "STORAGE_S", 0.01)
    monkeypatch.setattr(storage_module, "storage_speed", slow)
    return is_free


def test_a_storage_that_answers_late_is_a_finding_and_leaves_nothing(tmp_path: Path, late: threading.Event) -> None:
    with StorageProbe(str(tmp_path)) as probe:
        assert probe.facts["driver"] is None
        late.set()
        probe._thread.join()
        assert probe.facts["driver"] is None, "the thread does not change the facts"
    assert probe.facts["driver"]["read"] > 0
    assert probe.facts["problems"] == [f"storage {tmp_path} from this machine: no answer within 0 s"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.thorough
def test_the_late_answer_of_one_look_is_no_fact_of_another(tmp_path: Path, late: threading.Event) -> None:
    with StorageProbe(str(tmp_path)) as first:
        pass
    facts = dict(first.facts)
    late.set()
    with StorageProbe(str(tmp_path)) as second:
        first._thread.join()
        second._thread.join()
    assert first.facts == facts
    assert second.facts["driver"] != facts["driver"]


def test_an_unexpected_error_of_the_thread_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(uri: str, node: str) -> dict[str, Any]:
        raise ZeroDivisionError

    monkeypatch.setattr(storage_module, "storage_speed", broken)
    with pytest.raises(ZeroDivisionError):
        look_at_storage(str(tmp_path))
