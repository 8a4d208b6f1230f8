"""kNN and linear classification as `python -m perf benchmark` times them: by raysl, scikit-learn, faiss, a plain loop.

All contenders get the same features, scale them as they need it, and answer with a class for each test row.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from importlib.util import find_spec
from threading import Event, Thread

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from perf.harness import Numbers
from raysl.benchmarks.benchmark import FeatureSet
from raysl.benchmarks.knn import KNN
from raysl.benchmarks.linear import Linear
from raysl.benchmarks.logistic import Logistic
from raysl.errors import ConfigError
from raysl.process.memory import unmapped

Classifiers = dict[str, Callable[[], Tensor]]
"""Functions that return the classes int64 [M] of the test rows."""

K, TEMPERATURE = 20, 0.07
PLAIN_ROWS = 1000  # queries of a plain loop at once, the fastest number
WATCH_S = 0.002


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Rows, widths and numbers; the defaults are those of the goals."""

    keys: int = 50_000  # of the nearest neighbours; the classifiers learn from them
    queries: int = 10_000  # which the classifiers are measured on
    dim: int = 512
    classes: int = 10
    svm_rows: int = 600
    svm_dim: int = 128
    svm_classes: int = 20  # each with eleven costs
    few_images: int = 512  # to extract
    images: int = 1_024  # to extract; the difference of the seconds of both has no start in it
    depth: int = 18  # of the ResNet that extracts them, at 224 px
    few_rows: int = 10_000  # extracted by a stand-in network, for the memory of the driver
    rows: int = 200_000
    width: int = 2_048  # of the features of the stand-in


QUICK = Sizes(
    keys=5_000,
    queries=1_000,
    svm_rows=200,
    svm_dim=32,
    few_images=128,
    images=256,
    few_rows=2_000,
    rows=10_000,
    width=256,
)


def with_changes(sizes: Sizes, arguments: Sequence[str]) -> Sizes:
    """Return the sizes with changes by `name=number`."""
    known = [field.name for field in fields(Sizes)]
    changes = {}
    for argument in arguments:
        name, _, value = argument.partition("=")
        if name not in known:
            raise ConfigError(f"--size {argument}: there is no such size; known: {', '.join(known)}")
        if not value.isdecimal() or int(value) < 1:
            raise ConfigError(f"--size {argument}: write a whole number from 1 on, as in --size {name}=1000")
        changes[name] = int(value)
    return replace(sizes, **changes)


def random_features(sizes: Sizes) -> tuple[FeatureSet, FeatureSet]:
    """Training and test features: overlapping classes, of which a linear classifier gets some 84 % right.

    Each class is a Gaussian of its own mean; a few directions have most of the variance, as in features of networks.
    """
    generator = torch.Generator().manual_seed(0)
    spread = torch.arange(1, sizes.dim + 1).rsqrt()
    turn = torch.linalg.qr(torch.randn(sizes.dim, sizes.dim, generator=generator))[0]
    means = torch.randn(sizes.classes, sizes.dim, generator=generator) * 2.7 / sizes.dim**0.5

    def drawn(num: int) -> FeatureSet:
        labels = torch.randint(sizes.classes, (num,), generator=generator)
        rows = means[labels] + torch.randn(num, sizes.dim, generator=generator)
        return FeatureSet((rows * spread) @ turn.T + 1, labels)

    return drawn(sizes.keys), drawn(sizes.queries)


def knn_contenders(sizes: Sizes) -> Classifiers:
    """The vote of the 20 nearest keys by cosine."""
    from sklearn.neighbors import KNeighborsClassifier

    train, test = random_features(sizes)
    k = min(K, sizes.keys)

    def ours() -> Tensor:
        predictions = KNN(KNN.Config(k=(k,))).run(train, test, sizes.classes, 0).predicted
        assert predictions is not None
        return predictions

    def vote(cosines: Tensor, rows: Tensor) -> Tensor:
        weights = (cosines / TEMPERATURE).exp()
        return torch.zeros(len(rows), sizes.classes).scatter_add_(1, train.labels[rows], weights).argmax(dim=1)

    def plain() -> Tensor:
        keys = F.normalize(train.features, dim=1).T
        parts = torch.split(F.normalize(test.features, dim=1), PLAIN_ROWS)
        return torch.cat([vote(*(part @ keys).topk(k, dim=1)) for part in parts])

    def by_scikit_learn() -> Tensor:
        model = KNeighborsClassifier(k, algorithm="brute", weights=lambda d: np.exp((1 - d**2 / 2) / TEMPERATURE))
        model.fit(F.normalize(train.features, dim=1).numpy(), train.labels.numpy())
        return torch.from_numpy(model.predict(F.normalize(test.features, dim=1).numpy()))

    contenders = {"raysl": ours, "scikit-learn": by_scikit_learn, "plain": plain}
    if find_spec("faiss"):
        import faiss

        def by_faiss() -> Tensor:
            index = faiss.IndexFlatIP(sizes.dim)
            index.add(F.normalize(train.features, dim=1).numpy())
            cosines, rows = index.search(F.normalize(test.features, dim=1).numpy(), k)
            return vote(torch.from_numpy(cosines), torch.from_numpy(rows))

        contenders["faiss"] = by_faiss
    return contenders


def linear_contenders(sizes: Sizes) -> Classifiers:
    """`linear` with its 13 learning rates, of ten and of three epochs; `logistic` and scikit-learn with one C; and
    scikit-learn with the best of 13 on held-out rows, as many as `linear` holds out. All standardized."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import train_test_split
    from sklearn.preprocessing import StandardScaler

    train, test = random_features(sizes)

    def ours(probe: Linear | Logistic) -> Callable[[], Tensor]:
        def run() -> Tensor:
            scores = probe.run(train, test, sizes.classes, 0).scores
            assert scores is not None
            return scores.argmax(dim=1)

        return run

    scaler = StandardScaler().fit(train.features.numpy())
    rows, labels = scaler.transform(train.features.numpy()), train.labels.numpy()
    queries = scaler.transform(test.features.numpy())

    def by_scikit_learn() -> Tensor:
        return torch.from_numpy(LogisticRegression(max_iter=1000).fit(rows, labels).predict(queries))

    def best_by_scikit_learn() -> Tensor:
        kept, held, kept_labels, held_labels = train_test_split(rows, labels, test_size=0.1, random_state=0)
        models = [
            LogisticRegression(C=cost, max_iter=1000)
            for cost in np.logspace(-6, 0, len(Linear.Config().learning_rates))
        ]
        shares = [model.fit(kept, kept_labels).score(held, held_labels) for model in models]
        return torch.from_numpy(models[int(np.argmax(shares))].fit(rows, labels).predict(queries))

    return {
        "raysl": ours(Linear(Linear.Config())),
        "raysl, 3 epochs": ours(Linear(Linear.Config(epochs=3, min_updates=0))),
        "scikit-learn": by_scikit_learn,
        "logistic": ours(Logistic(Logistic.Config(costs=(1.0,)))),
        "scikit-learn, 13 C": best_by_scikit_learn,
    }


def measure_memory(contender: str, sizes: Numbers) -> dict[str, float]:
    """Measure the memory in MB that a contender of kNN has beyond its features, in this process."""
    return {"memory_mb": _most_beyond(knn_contenders(Sizes(**sizes))[contender])}


def _most_beyond(run: Callable[[], object]) -> float:
    """Return the MB that this process has at most while it runs, less those that it had before."""
    before, is_over = unmapped(), Event()
    samples = [before]

    def watch() -> None:
        while not is_over.wait(WATCH_S):
            samples.append(unmapped())

    watcher = Thread(target=watch)
    watcher.start()
    try:
        run()
    finally:
        samples.append(unmapped())
        is_over.set()
        watcher.join()
    return max(0, max(samples) - before) / 2**20
