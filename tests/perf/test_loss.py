"""Losses side by side: what is compared is the same thing, and the table says whether it is fast enough."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from perf import loss_cases
from perf.harness import choose_cases
from perf.loss import measure, table
from perf.loss_cases import CASES, Sizes, has_lightly
from raysl.errors import ConfigError

TINY = Sizes(
    batch=8,
    large_batch=16,
    small_batch=4,
    dim=6,
    wide=5,
    queue=32,
    prototypes=5,
    many_prototypes=7,
    rows=12,
    classes=3,
    points=64,
    centroids=4,
    depth=10,
)
LOSSES = ("nt_xent", "info_nce", "sup_con", "dcl", "barlow_twins", "vicreg", "dino", "swapped_prediction")


@pytest.mark.parametrize("name", LOSSES)
def test_contenders_compute_the_same_gradient(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gradients: list[torch.Tensor] = []

    def both(loss: Any, values: torch.Tensor) -> Any:
        def run() -> None:
            leaf = values.clone().requires_grad_()
            loss(leaf).backward()
            gradients.append(leaf.grad)

        return run

    monkeypatch.setattr(loss_cases, "_both", both)
    torch.manual_seed(0)
    contenders = CASES[name].build(replace(TINY, queue=TINY.batch))
    grads = []
    for run in contenders.values():
        run()  # a queue of one batch then holds the same keys for all
        run()
        grads.append(gradients[-1])
    assert len(grads) == len(contenders) > 1
    for other in grads[1:]:
        torch.testing.assert_close(other, grads[0], rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", ["sinkhorn", "sinkhorn_large"])
def test_contenders_compute_the_same_codes(name: str) -> None:
    codes = [run() for run in CASES[name].build(TINY).values()]
    for other in codes[1:]:
        torch.testing.assert_close(other, codes[0])


@pytest.mark.cluster
def test_every_case_is_measured_and_judged_by_its_goals() -> None:
    numbers = measure(repeats=2, sizes=TINY, with_memory=False)
    assert set(numbers["cases"]) == set(CASES)
    shown = table(numbers)
    for case in CASES.values():
        assert case.title.format_map(numbers["environment"]["sizes"]) in shown
    assert shown.count("goal at most") == sum(
        ratio in numbers["cases"][name]["ratios"] for name, case in CASES.items() for ratio in case.goals
    )
    assert ("raysl/lightly" in numbers["cases"]["nt_xent"]["ratios"]) == has_lightly()


@pytest.mark.cluster
def test_what_is_not_installed_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_cases, "find_spec", lambda name: None)
    numbers = measure(["nt_xent", "kmeans"], repeats=1, sizes=TINY, with_memory=False)
    assert set(numbers["cases"]["nt_xent"]["seconds"]) == {"raysl", "plain"}
    assert set(numbers["cases"]["kmeans"]["seconds"]) == {"raysl"}
    assert "raysl/faiss" not in table(numbers)


@pytest.mark.cluster
def test_memory_is_that_of_a_process_of_its_own() -> None:
    numbers = measure(["nt_xent_large"], sizes=replace(TINY, large_batch=256))["cases"]["nt_xent_large"]
    assert 0 <= numbers["memory_mb"]["raysl"] < 1000
    assert numbers["seconds"]["raysl"] > 0


@pytest.mark.slow
def test_memory_counts_what_a_case_holds_at_once() -> None:
    numbers = measure(["sinkhorn"], repeats=1, sizes=replace(TINY, rows=4096, prototypes=3000))
    matrix = 4096 * 3000 * 4 / 2**20
    assert 0.9 * matrix < numbers["cases"]["sinkhorn"]["memory_mb"]["plain"] < 3 * matrix


def test_a_case_that_does_not_exist_is_refused() -> None:
    assert choose_cases([], CASES) == list(CASES)
    assert choose_cases(["sup_con", "nt_xent"], CASES) == ["nt_xent", "sup_con"]
    with pytest.raises(ConfigError, match="--only ntxent: there is no such case; known: nt_xent"):
        choose_cases(["ntxent"], CASES)
