"""Exact nearest neighbours in chunks, by torch or faiss."""

from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from raysl.errors import ConfigError, log

Backend = Literal["auto", "torch", "faiss"]
Similarity = Literal["cosine", "dot", "euclidean"]

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
    search, at_once = (_by_faiss if is_faiss else _by_torch), KEYS_A_QUERY * chunk_rows
    for part in torch.split(queries, at_once if is_faiss else chunk_rows):
        compared = _prepared(part.to(device), similarity)
        best = compared.new_empty(len(part), 0)
        rows = torch.empty(len(part), 0, dtype=torch.int64, device=device)
        for first in range(0, len(keys), at_once):
            chunk = _prepared(keys[first : first + at_once].to(device), similarity)
            values, index = search(compared, chunk, min(k, len(chunk)), similarity)
            best, rows = torch.cat([best, values], dim=1), torch.cat([rows, index + first], dim=1)
            if best.shape[1] > k:
                best, order = best.topk(k, dim=1)
                rows = rows.gather(1, order)
        yield best.to(queries.device), rows.to(queries.device)


def _prepared(rows: Tensor, similarity: Similarity) -> Tensor:
    return F.normalize(rows.float(), dim=1) if similarity == "cosine" else rows.float()


def _by_torch(queries: Tensor, keys: Tensor, k: int, similarity: Similarity) -> tuple[Tensor, Tensor]:
    """Return similarities and rows of the k nearest keys [N, D] of queries [B, D], [B, k] each, best first."""
    if similarity == "euclidean":
        middle = keys.mean(dim=0)  # differences of squares that are large beside the distances would lose digits
        similarities = torch.cdist(queries - middle, keys - middle).neg()  # [B, N]
    else:
        similarities = queries @ keys.T
    best = similarities.topk(k, dim=1)
    return best.values, best.indices


def _by_faiss(queries: Tensor, keys: Tensor, k: int, similarity: Similarity) -> tuple[Tensor, Tensor]:
    """Return the same as `_by_torch`."""
    import faiss  # which no training should wait for

    metric = faiss.METRIC_L2 if similarity == "euclidean" else faiss.METRIC_INNER_PRODUCT
    if queries.is_cuda and _faiss_sees_gpu():
        import faiss.contrib.torch_utils  # has faiss take tensors where they are

        # knn_gpu searches on the current device, which need not be that of the queries
        with torch.cuda.device(queries.device):
            best, index = faiss.knn_gpu(_gpu_memory(), queries, keys, k, metric=metric)
    else:
        faiss.omp_set_num_threads(torch.get_num_threads())  # it has an OpenMP of its own
        nearest = faiss.knn(queries.cpu().numpy(), keys.cpu().numpy(), k, metric=metric)
        best, index = (torch.from_numpy(values).to(queries.device) for values in nearest)
    # faiss returns squared distances, which rounding can make negative
    return (best.clamp_min(0).sqrt().neg() if similarity == "euclidean" else best), index


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
