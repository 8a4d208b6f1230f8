"""Data tasks that are killed, shards that are damaged, and an object store that is too small for the stream."""

import signal
from dataclasses import replace

import pytest

from tests.chaos.conftest import Calm, Disturb, Join, Record
from tests.chaos.harness import GATED, Command, Workplace, send

pytestmark = pytest.mark.slow

IN_BLOCKS = ("data.limit=1408", "train.batch_size=256", "train.epochs=8")  # 40 steps, 16 to a block


def test_a_killed_data_task_is_repeated(disturb: Disturb, calm: Calm, record: Record) -> None:
    run = disturb(*GATED, "data.hold_read=2", *IN_BLOCKS, hold=0)
    run.start()
    run.last.until(run.held_readers)
    run.hit(lambda: send(signal.SIGKILL, run.held_readers()[0]))
    run.let_go()
    run.last.ended()
    record(run.row("SIGKILL of a data task while it reads", calm(*IN_BLOCKS)))
    assert run.steps_again() == 0


def test_a_damaged_shard_is_named_and_the_run_goes_on_with_a_whole_one(
    disturb: Disturb, calm: Calm, tmp_path_factory: pytest.TempPathFactory, record: Record
) -> None:
    shards = tmp_path_factory.mktemp("shards")
    words = ("data=parquet", f"data.path={shards}", "data.image_size=16")
    place = Workplace({})
    try:
        Command(["ingest", "quickstart", f"--out={shards}", "--rows-per-file=400"], place.environment).ended()
    finally:
        place.close()
    shard = shards / "train-00001-of-00004.parquet"
    whole = shard.read_bytes()
    run = disturb(*words)
    run.start()
    run.until_held()
    run.last.kill()
    run.hit(lambda: shard.write_bytes(whole[:4] + bytes(2000) + whole[2004:]))
    run.let_go()
    output = run.start().ended(1)
    assert "Traceback" not in output
    assert shard.name in output
    shard.write_bytes(whole)
    assert "resumed at step 15 of 40" in run.start().ended()
    record(run.row("a shard of the dataset is damaged, and restored", calm(*words)))


def test_a_stream_flows_through_an_object_store_that_is_smaller(
    disturb: Disturb, join: Join, calm: Calm, record: Record
) -> None:
    large = ("data.image_size=64", "method.views.size=64", "train.batch_size=128", "data.limit=1024")
    run = disturb(*large, hold=0)
    cluster = join(run, "--num-cpus=2", f"--object-store-memory={80 << 20}")
    run.hit(run.start)
    run.last.ended()
    row = run.row("an object store of 80 MB, and 126 MB of views", calm(*large), is_over=False)
    record(replace(row, seconds=None, left=[*row.left, *cluster.placement_groups()]))
    assert run.steps_again() == 0
