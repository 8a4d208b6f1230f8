"""Nearest neighbours on a GPU are those of a CPU."""

from itertools import product
from typing import Any

import pytest
import torch

from raysl.benchmarks.neighbours import nearest_rows
from tests.gpu.marks import on_gpu

pytestmark = on_gpu
PLACES = list(product(("cpu", "cuda"), repeat=2))


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
@pytest.mark.parametrize("backend", ["torch", "faiss"])
@pytest.mark.parametrize(("keys_at", "queries_at"), PLACES[1:])
def test_neighbours_are_those_of_a_cpu(keys_at: str, queries_at: str, backend: Any, similarity: Any) -> None:
    if backend == "faiss":
        pytest.importorskip("faiss")
    random = torch.Generator().manual_seed(0)
    keys, queries = torch.randn(3000, 64, generator=random), torch.randn(100, 64, generator=random)

    def search(keys: torch.Tensor, queries: torch.Tensor, backend: Any) -> list[torch.Tensor]:
        found = nearest_rows(keys, queries, k=7, chunk_rows=64, backend=backend, similarity=similarity)
        return [torch.cat(parts) for parts in zip(*found, strict=True)]

    best, rows = search(keys, queries, "torch")
    on_gpu, rows_on_gpu = search(keys.to(keys_at), queries.to(queries_at), backend)
    assert on_gpu.device.type == queries_at
    torch.testing.assert_close(on_gpu.cpu(), best, rtol=1e-3, atol=1e-3)
    assert (rows_on_gpu.cpu() == rows).float().mean() > 0.99, "near ties may change places"
