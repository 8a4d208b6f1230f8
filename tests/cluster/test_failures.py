"""What Ray said when processes were really killed, in `said/`, becomes one line."""

from pathlib import Path

import pytest
from ray.exceptions import ActorDiedError, NodeDiedError, ObjectLostError, OutOfMemoryError, RayTaskError
from ray.train.v2._internal.exceptions import WorkerHealthCheckFailedError, WorkerHealthCheckTimeoutError

from raysl.cluster.failures import HungWorker, SilentWorker, Worker, describe_failures, describe_message, reason
from raysl.errors import RunFailed

SAID = Path(__file__).with_name("said")
WORKERS = {0: Worker("10.0.0.1", 11), 1: Worker("10.0.0.2", 12), 2: Worker("10.0.0.2", 13)}


def _said(name: str) -> str:
    return (SAID / f"{name}.txt").read_text()


def _died(name: str) -> WorkerHealthCheckFailedError:
    error = ActorDiedError()
    error.error_msg = _said(name)
    return WorkerHealthCheckFailedError("A worker health check failed.\nWorker info: ...", error)


def _hung() -> WorkerHealthCheckTimeoutError:
    return WorkerHealthCheckTimeoutError(_said("stopped"))


OUT_OF_MEMORY = WorkerHealthCheckFailedError("A worker", OutOfMemoryError(_said("out_of_memory")))
LOST_PEER, TIMEOUT = RuntimeError(_said("peer_killed")), RuntimeError(_said("collective_timeout"))


@pytest.mark.parametrize(
    ("failures", "line"),
    [
        (
            {0: LOST_PEER, 1: _died("killed")},
            "lost worker 1 on 10.0.0.2: its process was killed, as by SIGKILL or by the kernel for lack of memory",
        ),
        ({1: _died("terminated")}, "lost worker 1 on 10.0.0.2: its process was ended by SIGTERM"),
        ({0: TIMEOUT, 1: _hung()}, "worker 1 on 10.0.0.2 hung: it has not answered for 11 s"),
        (
            {1: OUT_OF_MEMORY, 2: OUT_OF_MEMORY, 0: LOST_PEER},
            "lost workers 1, 2 on 10.0.0.2: out of memory on 192.0.2.2, where 5.78 of 23.54 GB were in use: Ray ended "
            "the training worker of 0.87 GB; lower train.batch_size, or take nodes with more memory",
        ),
        ({0: LOST_PEER, 2: SilentWorker("its node is gone")}, "lost worker 2 on 10.0.0.2: its node is gone"),
        (
            {2: HungWorker("the other workers have waited for it for 10 min at step 7")},
            "worker 2 on 10.0.0.2 hung: the other workers have waited for it for 10 min at step 7",
        ),
        (
            {0: ValueError("no such class,\n  in two lines: https://a.b/c")},
            "worker 0 on 10.0.0.1 failed: ValueError: no such class, in two lines:",
        ),
        (
            {0: RayTaskError("read", "Traceback ...\nOSError: no such file", OSError("no such file"))},
            "the data of worker 0 on 10.0.0.1 failed: OSError: no such file",
        ),
        (
            {0: RayTaskError("read", "", RunFailed("cannot read a.parquet; restore it\nFailed to apply UDF"))},
            "the data of worker 0 on 10.0.0.1 failed: cannot read a.parquet; restore it",
        ),
    ],
)
def test_a_lost_worker_is_one_line_with_its_node_and_the_reason(failures: dict[int, BaseException], line: str) -> None:
    assert describe_failures(failures, WORKERS) == line


def test_workers_that_only_lost_their_connection_are_named_where_nobody_else_is_known() -> None:
    line = describe_failures({0: LOST_PEER}, WORKERS)
    assert line.startswith("worker 0 on 10.0.0.1 failed: RuntimeError: [")
    assert "\n" not in line


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (NodeDiedError("The node died: 4f"), "its node is gone"),
        (ObjectLostError("ab", None, ""), "a batch of images was lost with the process or the node that held it"),
    ],
)
def test_other_errors_of_ray_are_one_line(error: BaseException, why: str) -> None:
    assert reason(error) == why


@pytest.mark.parametrize("ended", ["process_killed", "task_killed"])
def test_a_process_beside_the_workers_is_told_of_once(ended: str) -> None:
    text = _said(ended)
    line = describe_message(text)
    assert line is not None
    start = "lost a data task or another process of Ray on 192.0.2.2 (process 28353): its process was killed"
    assert line.startswith(start)
    assert describe_message(text, known=[28353]) is None


def test_a_task_that_is_ended_for_lack_of_memory_and_tried_again_is_one_line() -> None:
    assert describe_message(_said("task_out_of_memory")) == (
        "lost a data task or another process of Ray: out of memory on 192.0.2.2, where 21.62 of 23.54 GB were in use: "
        "Ray ended the data task of 0.37 GB; lower data.buffer_gb, or take nodes with more memory; "
        "its work is done again"
    )


def test_a_dead_node_is_told_of_with_its_address() -> None:
    text = (
        "The node with node id: 5e41 and address: 10.0.0.2 and node name: 10.0.0.2 has been marked dead because the "
        "detector has missed too many heartbeats from it."
    )
    assert describe_message(text) == "lost node 10.0.0.2: nothing answers there"
    assert describe_message("(autoscaler +5s) Adding 1 node(s) of type worker.") is None
