"""Large runs, counted through with the real order and the real blocks."""

import pytest

from perf.scale import ScaleTask, count_run, table


@pytest.mark.thorough
@pytest.mark.parametrize("world", [1, 8, 64])
def test_each_byte_is_read_about_once_and_every_rank_gets_whole_blocks(world: int) -> None:
    numbers = count_run(ScaleTask(rows=200_000, unit_rows=16), world)
    assert 1 <= numbers["read"] <= 1 + 63 / (200_000 / 16)
    assert numbers["block_rows"] >= 200
    # windows of 256 rows and the 64 rows of a step, of each lane
    assert 64 / world * 64 <= numbers["live_rows"] <= 64 / world * (256 + 64)


@pytest.mark.thorough
def test_what_waits_in_memory_does_not_grow_with_the_epoch() -> None:
    short, long = (count_run(ScaleTask(rows=rows, unit_rows=16), 8) for rows in (100_000, 400_000))
    assert long["live_rows"] < 1.5 * short["live_rows"]


def test_the_table_has_a_line_for_each_number_of_gpus() -> None:
    run = {"read": 1.01, "steps": 312, "block_rows": 500, "blocks_step": 1, "live_rows": 9000}
    node = {"blocks_s": 32, "stream_cpus": 0.1, "read_gb_s": 1.8, "live_gb": 2.7}
    numbers = {
        "runs": {"8": run},
        "node": {"8": node},
        "stream": {"blocks_s": 400, "rank_ms": 1.5},
        "task": {"rows": 1000, "image_bytes": 1000, "unit_rows": 10, "gpus": 8, "images_s": 2000},
    }
    shown = table(numbers)
    assert "1.0100" in shown
    assert "goal 1.05: ok" in shown
