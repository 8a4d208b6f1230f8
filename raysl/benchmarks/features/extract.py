"""Features of a dataset by a checkpoint's backbone, extracted to a folder of Parquet files."""

from collections.abc import Sequence

from raysl.benchmarks.benchmark import FEATURES
from raysl.benchmarks.features.embedding import check_stages
from raysl.benchmarks.features.store import Dtype
from raysl.benchmarks.features.stored_features import Features
from raysl.benchmarks.suite.settings import dataset_tag, load_cluster, load_data, sort_overrides
from raysl.checkpoint.backbone import Checkpoint, load_checkpoint
from raysl.cluster.settings import use_settings
from raysl.config.arguments import instance, words
from raysl.config.schema import DataConfig
from raysl.data.source import SPLITS, Split, make_source
from raysl.data.sources.part_names import parse_part_name
from raysl.errors import ConfigError
from raysl.process.waiting import enter
from raysl.storage.addresses import join
from raysl.storage.folder import Folder

_SPLITS = {"train": "train", "trainval": "train", "test": "test", "val": "test"}


def extract(
    checkpoint: str,
    source: DataConfig | None = None,
    split: str | None = None,
    out: str | None = None,
    trust_code: bool = False,
    overrides: Sequence[str] = (),
    stage: str = FEATURES,
    dtype: Dtype = "fp32",
) -> Features:
    """Extract features of a dataset by a checkpoint's backbone to a folder of Parquet files.

    Parts of the same features that an earlier call has written stay, so an interrupted call is resumed.

    >>> len(extract("runs/mine").features)
    355

    Args:
        checkpoint: local path or URI of a checkpoint, or of a run, whose newest one is taken.
        source: settings of a dataset; default: the one of the run.
        split: `train`, or `test`, which `val` and `validation` mean too; default: test, and of other images without
            test images, train.
        out: Parquet folder to write; default: `features_<split>.parquet` beside the checkpoint, and for images that are
            not the run's `features_<dataset>_<split>.parquet`, which a part of a hash makes another one for others.
        trust_code: whether components that the checkpoint names may be code that is not raysl's.
        overrides: other images by settings on top of the run's, `data=parquet`, `data.path=/b`, and settings about the
            cluster, `cluster.max_gpus=8`.
        stage: name of a stage, whose mean over all places is taken; default: the features.
        dtype: type of the numbers on disk, fp32 or fp16.

    Raises:
        ConfigError: if the split or a stage does not exist, the checkpoint or the images cannot be read, or it names
            code that is not trusted.
    """
    # Ray, without which benchmarks can still be named
    from raysl.benchmarks.features.extraction import Wanted, extract_to
    from raysl.cluster.connection import connect

    of_images, of_cluster, others = sort_overrides(words(overrides, "overrides", "data.path=/b"))
    if source is not None:
        instance(source, DataConfig, "source", "settings of a dataset, as raysl.load_config('quickstart').data")
    if split is not None:
        instance(split, str, "split", "'train' or 'test'")
    lines = []
    # other libraries call the test images val or validation
    if split is not None and (split := _SPLITS.get(parse_part_name(name := split) or "")) is None:
        lines.append(
            f"no split {name!r}; write {' or '.join(SPLITS)} (val means test). Other held-out images are named by "
            "data.test="
        )
    if dtype not in ("fp32", "fp16"):
        lines.append(f"dtype {dtype!r} is none of fp32 and fp16; write one of them")
    lines += [
        f"{word!r} is not a setting of the images, which begin with data= or data., or of the cluster"
        for word in others
    ]
    if lines:
        raise ConfigError("\n".join(lines))
    enter("reading the checkpoint")
    loaded = load_checkpoint(checkpoint, trust_code)
    use_settings(load_cluster(loaded.config, of_cluster))
    check_stages(loaded.backbone, (stage,), loaded.uri)
    enter("listing the images")
    data = source or load_data(loaded.config, of_images)
    split, images = _choose_split(data, loaded, split)
    tag = dataset_tag(data, loaded.config.data)
    name = "_".join(filter(None, ("features", tag, stage.replace(".", "-"), split)))
    path = str(out) if out else join(loaded.uri, f"{name}.parquet")
    wanted = Wanted({"trained": loaded.backbone}, {"trained": loaded.digest}, (stage,), dtype)
    enter("starting Ray")
    connect()
    enter(f"computing features of {images.num_samples:,} {split} images")
    extract_to(wanted, images, data, {("trained", stage): Folder(path)})
    return Features(path=path)


def _choose_split(data: DataConfig, loaded: Checkpoint, name: str | None) -> tuple[str, Split]:
    """Return the split of this name; without a name test, or train of other images than the run's without test."""
    is_own = data is loaded.config.data
    source = make_source(data)
    if name != "train" and (images := source.optional("test")) is not None:
        return "test", images
    if name == "train" or (name is None and not is_own):
        return "train", source.required("train")
    raise ConfigError(
        f"the dataset {data.name!r} has no test images; take its training images by --split train (in Python "
        "split='train'), or give data.test="
    )
