"""Exact nearest neighbours in chunks, by torch or faiss."""

from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from raysl.errors import ConfigError, log

Backend = Literal["auto", "torch", "faiss"]
Similarity = Literal["cosine", "dot", "euclidean"]
Search = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]
"""From queries [B, D], keys [N, D] and k to similarities and rows of the k nearest keys, [B, k] each, best first."""

KEYS_A_QUERY = 4
"""Keys that are searched at once for each row of `chunk_rows`; with faiss also queries."""


def fitting_ks(ks: tuple[int, ...], num_train: int) -> tuple[tuple[int, ...], list[str]]:
    """Return the numbers of neighbours that there are training images for, and a line on the others; see
    `Benchmark.fit_to`."""
    fitting = tuple(k for k in ks if k <= num_train)
    if fitting == ks:
        return ks, []
    why = f"k={', '.join(str(k) for k in ks if k > num_train)} is more than the {num_train:,} training images"
    if not fitting:
        raise ConfigError(f"{why}; set a smaller k")
    return fitting, [f"{why}; k={list(fitting)} is measured"]


@torch.no_grad()
def nearest_rows(
    keys: Tensor,
    queries: Tensor,
    k: int,
    chunk_rows: int = 4096,
    backend: Backend = "torch",
    similarity: Similarity = "cosine",
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield similarities and numbers of the k nearest keys of the queries, nearest first, for some queries at a time.

    Neither keys nor queries are copied whole, so memory is that of a chunk whatever their number. Where keys or
    queries are on a GPU, it compares them, and chunks of the others are copied there.

    Args:
        keys: [N, D], searched.
        queries: [M, D].
        k: neighbours; all keys where there are fewer.
        chunk_rows: queries that torch compares at once, with `KEYS_A_QUERY` times as many keys; faiss, which holds no
            table of both, compares as many queries as keys.
        backend: torch, faiss or auto, which takes faiss on CPUs, where it is faster, if it is installed, and torch on
            a GPU. faiss uses the GPU if it sees one, else it compares on the CPU and says so. Rows that are equally
            near may come in another order.
        similarity: the cosine; the dot product; or minus the Euclidean distance.

    Yields:
        float32 and int64 [m, min(k, N)] each, on the device of the queries, for m queries after another.
    """
    device = keys.device if keys.is_cuda else queries.device
    is_faiss = backend == "faiss" or (backend == "auto" and device.type == "cpu" and find_spec("faiss") is not None)
    search = _by_faiss(similarity) if is_faiss else _by_torch(similarity)
    prepare = _unit if similarity == "cosine" else _floats
    at_once = KEYS_A_QUERY * chunk_rows if is_faiss else chunk_rows
    for chunk in torch.split(queries, at_once):
        best, rows = _nearest(prepare(chunk.to(device)), keys, k, KEYS_A_QUERY * chunk_rows, search, prepare)
        yield best.to(queries.device), rows.to(queries.device)


def _nearest(
    queries: Tensor, keys: Tensor, k: int, chunk_rows: int, search: Search, prepare: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    best = queries.new_empty(len(queries), 0)
    rows = torch.empty(len(queries), 0, dtype=torch.int64, device=queries.device)
    for first in range(0, len(keys), chunk_rows):
        chunk = prepare(keys[first : first + chunk_rows].to(queries.device))
        values, index = search(queries, chunk, min(k, len(chunk)))
        best, rows = torch.cat([best, values], dim=1), torch.cat([rows, index + first], dim=1)
        if best.shape[1] > k:
            best, order = best.topk(k, dim=1)
            rows = rows.gather(1, order)
    return best, rows


def _unit(rows: Tensor) -> Tensor:
    return F.normalize(rows.float(), dim=1)


def _floats(rows: Tensor) -> Tensor:
    return rows.float()


def _by_torch(similarity: Similarity) -> Search:
    def search(queries: Tensor, keys: Tensor, k: int) -> tuple[Tensor, Tensor]:
        similarities = torch.cdist(queries, keys).neg() if similarity == "euclidean" else queries @ keys.T  # [B, N]
        best = similarities.topk(k, dim=1)
        return best.values, best.indices

    return search


def _by_faiss(similarity: Similarity) -> Search:
    import faiss  # which no training should wait for

    metric = faiss.METRIC_L2 if similarity == "euclidean" else faiss.METRIC_INNER_PRODUCT

    def on_cpu(queries: Tensor, keys: Tensor, k: int) -> tuple[Tensor, Tensor]:
        faiss.omp_set_num_threads(torch.get_num_threads())  # it has an OpenMP of its own
        values, index = faiss.knn(queries.cpu().numpy(), keys.cpu().numpy(), k, metric=metric)
        return torch.from_numpy(values).to(queries.device), torch.from_numpy(index).to(queries.device)

    def on_gpu(queries: Tensor, keys: Tensor, k: int) -> tuple[Tensor, Tensor]:
        import faiss.contrib.torch_utils  # has faiss take tensors where they are

        # knn_gpu searches on the current device, which need not be that of the queries
        with torch.cuda.device(queries.device):
            values, index = faiss.knn_gpu(_gpu_memory(), queries, keys, k, metric=metric)
        return values, index

    def search(queries: Tensor, keys: Tensor, k: int) -> tuple[Tensor, Tensor]:
        best, index = (on_gpu if queries.is_cuda and _faiss_sees_gpu() else on_cpu)(queries, keys, k)
        # faiss returns squared distances, which rounding can make negative
        return (best.clamp_min(0).sqrt().neg() if similarity == "euclidean" else best), index

    return search


@cache
def _faiss_sees_gpu() -> bool:
    """Return whether faiss sees a GPU; where it sees none, say so once in a process."""
    import faiss

    sees_gpu: bool = faiss.get_num_gpus() > 0
    if not sees_gpu:
        log.warning(
            "faiss sees no GPU, so it compares features of the GPU on the CPU; `pip install faiss-gpu`, or set "
            "knn.backend=torch to compare on the GPU"
        )
    return sees_gpu


@cache
def _gpu_memory() -> Any:
    """Return the memory of a GPU that faiss keeps for its searches."""
    import faiss

    return faiss.StandardGpuResources()
