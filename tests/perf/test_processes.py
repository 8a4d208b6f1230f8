import contextlib
import sys
import threading
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import pytest
import torch

from perf.contenders import Task, Workload, run_contender
from perf.processes import Child, Gate, Lineup, join
from raysl.data.batch import Batch
from raysl.errors import RunFailed

BATCHES = [Batch({}, torch.tensor([number]), torch.tensor([-1])) for number in range(2)]


@pytest.fixture
def lineup(tmp_path: Path) -> Iterator[Lineup]:
    with Lineup(tmp_path) as lineup:
        yield lineup


class Contender:
    """Takes batches from a gate in a thread, and notes which."""

    def __init__(self, lineup: Lineup, rank: int = 0, most: int = 1000) -> None:
        self.seen: list[int] = []
        self.path, self.rank, self.most = lineup.socket, rank, most
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def check(self) -> None:
        """A contender that does not fail."""

    def end(self) -> None:
        self.thread.join(10)

    def _run(self) -> None:
        with contextlib.suppress(EOFError):  # the lineup is closed when a test ends
            for batch in Gate(join(self.path, "x", self.rank), cycle(BATCHES)).from_step(0):
                self.seen.append(int(batch.index))
                if len(self.seen) == self.most:
                    return


@pytest.mark.cluster
def test_a_contender_runs_only_in_its_turns_and_goes_on_where_it_was(lineup: Lineup) -> None:
    contender = Contender(lineup)
    lineup.add("x", contender)
    assert contender.seen == []
    (reply,) = lineup.turn("x", num_warmup=1, num_steps=2)
    assert reply["seconds"] > 0
    assert contender.seen == [0, 1, 0]
    lineup.turn("x", num_warmup=0, num_steps=2)
    assert contender.seen == [0, 1, 0, 1, 0]


@pytest.mark.cluster
def test_the_last_turn_ends_the_stream_after_one_step(lineup: Lineup) -> None:
    contender = Contender(lineup)
    lineup.add("x", contender)
    assert lineup.turn("x", is_last=True) == [{}]
    contender.end()
    assert contender.seen == [0]
    assert not contender.thread.is_alive()


@pytest.mark.cluster
def test_all_processes_of_a_contender_take_the_turn(lineup: Lineup) -> None:
    contenders = [Contender(lineup, rank) for rank in (1, 0)]
    facts = lineup.add("x", contenders[0], world=2)
    assert [fact["rank"] for fact in facts] == [0, 1]
    assert all(fact["threads"] == torch.get_num_threads() for fact in facts)
    assert len(lineup.turn("x", num_warmup=0, num_steps=3)) == 2
    assert [contender.seen for contender in contenders] == [[0, 1, 0]] * 2


@pytest.mark.cluster
def test_a_contender_that_ends_inside_its_turn_is_noticed(lineup: Lineup) -> None:
    lineup.add("x", Contender(lineup, most=1))
    with pytest.raises(RunFailed, match="contender x ended before its time"):
        lineup.turn("x", num_warmup=0, num_steps=2)


@pytest.mark.cluster
def test_a_program_that_fails_before_its_first_turn_is_reported_with_its_output(lineup: Lineup, tmp_path: Path) -> None:
    child = Child([sys.executable, "-c", "raise SystemExit('no such program')"], tmp_path / "x.log")
    with pytest.raises(RunFailed, match=r"(?s)contender x ended with code 1.*no such program"):
        lineup.add("x", child)


def test_a_contender_is_given_its_task(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks: list[Task] = []
    monkeypatch.setattr("perf.contenders.prepare_process", lambda niceness, threads: None)
    monkeypatch.setattr("perf.contenders.PROGRAMS", {"bare_loop": tasks.append})
    settings = {"name": "x", "socket": "s", "folder": "f", "num_steps": 3, "world": 2, "threads": 1, "niceness": 0}
    run_contender("bare_loop", {"width": 8}, **settings)
    assert tasks == [Task(workload=Workload(width=8), **settings)]
