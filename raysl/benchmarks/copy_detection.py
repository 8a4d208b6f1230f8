"""Copy detection: edited copies of images are searched among distractors (Caron et al. 2021, arXiv 2104.14294, table
4)."""

from dataclasses import dataclass
from typing import Annotated

from torch import nn
from typing_extensions import override

from raysl.benchmarks.benchmark import Benchmark, BenchmarkConfig, Context, Findings, Labelled, mean_of, settings_from
from raysl.benchmarks.instance_retrieval.descriptors import Pooling
from raysl.benchmarks.instance_retrieval.search import Search
from raysl.config.ranges import Count, Location, NotEmpty, Positive, Side, Width
from raysl.nn.backbones.backbone import TokenBackbone


class CopyDetection(Benchmark):
    """Search for the original of each edited copy of Copydays (Douze et al. 2009), by the cosine of descriptors.

    A descriptor is the class token beside the generalised mean of the patches, of networks without tokens that of the
    last map, whitened where `whiten_on` is given, and brought to length 1. `map_strong` is the mean average precision
    of the strongly attacked images within the first 20 places, and so for each of `query_splits`; its interval is over
    queries. The database has the originals, and distractors: those in folders of Copydays whose names hold
    `distractor`, and `distractors`.
    """

    protocol = (
        "copies of Copydays against their originals and distractors by cosine, mean average precision; class token and "
        "GeM of patches, whitening learned on other images (Caron et al. 2021, arXiv 2104.14294, section 4.2.1)"
    )
    cost = "a forward pass of 320 px for each image of Copydays, distractors and whitening: 30,000 in the paper"
    own_images = True

    @dataclass(frozen=True, kw_only=True)
    class Config(BenchmarkConfig):
        """Settings of the search."""

        name: str = "copy_detection"
        path: Location | None = None
        """Folder or URI of Copydays, with original/ and strong/ in it. Required."""
        query_splits: Annotated[tuple[str, ...], NotEmpty()] = ("strong",)
        """Folders of it whose images are queries, such as strong, crops/50 or jpegqual; each gives its own number."""
        distractors: Location | None = None
        """Folder of further images that are searched; the paper has 10,000 of YFCC100M. Default: none."""
        whiten_on: Location | None = None
        """Folder of other images that a PCA whitening is learned on; the paper has 20,000 of YFCC100M. Default: no
        whitening."""
        whiten_dim: Width | None = None
        """Principal components that are kept. Default: all."""
        whiten_images: Count | None = None
        """Images that it is learned on at most, an even share. Default: all."""
        stage: str | None = None
        """Stage of the network. Default: the last that has places, as norm or res5."""
        pooling: Pooling | None = None
        """Pooling of it, as for `retrieval`. Default: class_gem, and gem of networks without tokens."""
        gem_p: Positive = 4.0
        """Power of the generalised mean."""
        size: Side = 320
        """Sides of the square that images are brought to, in pixels, rounded to whole patches."""
        first: Count | None = 20
        """Places of a ranking that count: an original that is found later counts as not found, as in DINO's code. null
        counts all places."""
        whiten_center: bool = False
        """Whiten by the covariance of the vectors. Default: by their second moments about 0, as DINO's code; what is
        whitened has the mean subtracted in either case."""
        length_one: bool = False
        """Bring vectors to length 1 before they are whitened, too, which DINO's code does not."""

    @classmethod
    @override
    def fit_to(cls, config: Config, images: Labelled) -> tuple[Config, list[str]]:
        """Copydays must be complete, and the whitening is learned on other images."""
        _search(config).check()
        return config, []

    @classmethod
    @override
    def metrics(cls, config: Config, num_classes: int) -> list[str]:
        return [f"map_{task}" for task in _search(config).names()]

    @override
    def measure(self, context: Context) -> Findings:
        metrics = []
        for task, scored in _search(self.config, context.network).run(context).items():
            title = f"Copy detection, {task}, mean average precision"
            metrics.append(mean_of(f"map_{task}", scored.average_precision, title=title))
        return Findings(metrics)


def _search(config: CopyDetection.Config, network: nn.Module | None = None) -> Search:
    """Return the search by a network, or without one for what is known before."""
    pooling: Pooling = "class_gem" if isinstance(network, TokenBackbone) else "gem"
    return settings_from(
        config,
        Search,
        dataset="copydays",
        pooling=config.pooling or pooling,
        normalize=config.length_one,
        is_square=True,
        crop_queries=False,
        similarity="dot",
        cut=config.first,
    )
