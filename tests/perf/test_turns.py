import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from perf.contenders import Task
from perf.processes import Child
from perf.turns import LAST_TURN, Gate, Starter, Turn
from perf.workload import Workload
from raysl.data.batch import Batch
from raysl.errors import RunFailed

BATCHES = [Batch({}, torch.tensor([number]), torch.tensor([-1])) for number in range(2)]


@pytest.fixture
def starter(tmp_path: Path) -> Iterator[Starter]:
    with Starter(tmp_path) as starter:
        yield starter


class Contender:
    """Takes batches from a gate in a thread, and notes which."""

    def __init__(self, starter: Starter, rank: int = 0, most: int = 1000) -> None:
        self.seen: list[int] = []
        self.path, self.rank, self.most = starter.path, rank, most
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        with contextlib.suppress(EOFError):  # the starter is closed when a test ends
            for batch in Gate(self.path, "x", self.rank, BATCHES).from_step(0):
                self.seen.append(int(batch.index))
                if len(self.seen) == self.most:
                    return


def never() -> None:
    """A contender that does not fail."""


@pytest.mark.cluster
def test_a_contender_runs_only_in_its_turns_and_goes_on_where_it_was(starter: Starter) -> None:
    contender = Contender(starter)
    starter.wait_for("x", 1, never)
    assert contender.seen == []
    assert starter.run("x", Turn(num_warmup=1, num_steps=2)) > 0
    assert contender.seen == [0, 1, 0]
    assert starter.run("x", Turn(num_warmup=0, num_steps=2)) > 0
    assert contender.seen == [0, 1, 0, 1, 0]


@pytest.mark.cluster
def test_the_last_turn_ends_the_stream_after_one_step(starter: Starter) -> None:
    contender = Contender(starter)
    starter.wait_for("x", 1, never)
    starter.run("x", LAST_TURN)
    contender.thread.join(10)
    assert contender.seen == [0]
    assert not contender.thread.is_alive()


@pytest.mark.cluster
def test_all_processes_of_a_contender_take_the_turn(starter: Starter) -> None:
    contenders = [Contender(starter, rank) for rank in (1, 0)]
    hellos = starter.wait_for("x", 2, never)
    assert [hello["rank"] for hello in hellos] == [0, 1]
    assert all(hello["threads"] == torch.get_num_threads() for hello in hellos)
    starter.run("x", Turn(num_warmup=0, num_steps=3))
    assert [contender.seen for contender in contenders] == [[0, 1, 0]] * 2


@pytest.mark.cluster
def test_a_contender_that_ends_inside_its_turn_is_noticed(starter: Starter) -> None:
    Contender(starter, most=1)
    starter.wait_for("x", 1, never)
    with pytest.raises(EOFError):
        starter.run("x", Turn(num_warmup=0, num_steps=2))


@pytest.mark.cluster
def test_a_program_that_fails_before_its_first_turn_is_reported_with_what_it_said(
    starter: Starter, tmp_path: Path
) -> None:
    task = Task(name="x", socket="nowhere", folder=str(tmp_path), workload=Workload(), num_steps=1, world=1, threads=1)
    child = Child("no_such_program", task)
    with pytest.raises(RunFailed, match=r"(?s)contender x ended with code 1.*no_such_program"):
        starter.wait_for("x", 1, child.check)
    child.end()


def test_a_task_survives_the_command_line() -> None:
    task = Task(name="x", socket="s", folder="f", workload=Workload(width=8), num_steps=3, world=2, threads=1)
    assert Task.from_json(task.to_json()) == task
