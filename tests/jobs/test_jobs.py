"""The entry scripts, run as jobs on a Ray head of their own."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.jobs.heads import Head, started_head

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    with started_head(tmp_path_factory.mktemp("head")) as head:
        yield head


def _meta(checkpoint: Path) -> dict[str, object]:
    return dict(json.loads((checkpoint / "meta.json").read_text()))


def _steps(run: Path) -> list[int]:
    path = run / "metrics.jsonl"
    return [json.loads(line)["step"] for line in path.read_text().splitlines()] if path.exists() else []


def test_a_job_trains_with_the_shipped_raysl_and_its_log_ends_with_the_run(head: Head, tmp_path: Path) -> None:
    words = ["jobs/pretrain.py", "quickstart", "--low-resource", "benchmarks=[]", f"storage={tmp_path}", "name=short"]
    job = head.submit("short", *words)
    assert job.ended() == 0, job.log
    run = tmp_path / "short"
    *_, place, note = job.log.splitlines()
    assert place.split() == ["run", str(run)]
    assert note.startswith("note        --low-resource")
    (checkpoint,) = run.glob("checkpoint_0*")
    assert _meta(checkpoint)["step"] == 30
    assert _meta(checkpoint)["raysl"] == "shipped"


def test_a_stopped_job_leaves_a_checkpoint_from_which_the_next_one_goes_on(head: Head, tmp_path: Path) -> None:
    settings = ["train.epochs=200", "train.checkpoint_every=100%", "train.online_knn_every=null", "benchmarks=[]"]
    words = ["jobs/pretrain.py", "quickstart", "--low-resource", *settings, f"storage={tmp_path}", "name=long"]
    run = tmp_path / "long"
    job = head.submit("long", *words)
    job.until(lambda: bool(_steps(run)))
    assert not list(run.glob("checkpoint_0*"))
    head.stop(job)
    (checkpoint,) = run.glob("checkpoint_0*")
    step = _meta(checkpoint)["step"]
    assert isinstance(step, int)
    assert 0 < step < 200 * 15
    assert f"stopped at step {step} of 3000" in job.log

    again = head.submit("long-again", *words)
    again.until(lambda: _steps(run)[-1] > step)
    head.stop(again)
    assert f"resumed at step {step}" in again.log
    assert _steps(run) == sorted(set(_steps(run)))
    assert sorted(run.glob("checkpoint_0*"))[-1] > checkpoint
