import pytest

from perf.order import OrderTask, measure_order, order_table, simulate


def test_memory_does_not_grow_with_the_rows_of_a_unit() -> None:
    small, large = (simulate(rows=2000 * rows, unit_rows=rows) for rows in (100, 10_000))
    assert large["memory_mb"] < small["memory_mb"] + 5
    assert large["first_batch_s"] < 1.0


@pytest.mark.cluster
def test_ranks_are_measured_in_processes_of_their_own() -> None:
    numbers = measure_order(OrderTask(rows=1_000_000, world=8, lanes=8, batch_size=256), ranks=(0, 7))
    assert len(numbers["ranks"]) == 2
    assert numbers["memory_mb"] == max(rank["memory_mb"] for rank in numbers["ranks"])
    assert numbers["process_mb"] > numbers["memory_mb"]
    assert "1,000,000 rows in 1,000 units, batch 256, 8 workers" in order_table(numbers)
