"""Settings of a run whose `method.weights` may be weights of others: a file, or what timm or torchvision publish."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from raysl.config import load
from raysl.config.schema import LIBRARIES, RunConfig
from raysl.errors import ConfigError, StorageError, log
from raysl.redact import redact_uri
from raysl.trained import is_trained

if TYPE_CHECKING:
    from raysl.weights.fill import Loaded


def load_config(name_or_path: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Load a packaged configuration (`simclr`, `data/cifar10`) or a YAML file, with settings changed.

    A `method.weights` that is a file of weights of others, or a published network (`timm:NAME`, `torchvision:NAME`), is
    converted once into a run in `storage`, which `method.weights` of the result names. Local paths become absolute.

    Args:
        name_or_path: a packaged name, or a path that ends in .yaml. Its `base:` files are lower layers.
        overrides: `key=value` with a dotted key and a YAML value: `optim.lr=1e-3`, `train.expect={top1: [0.6, 1]}`.
            `method=byol` selects a component, `benchmarks=[knn]` keeps only these, `benchmarks=[]` none, likewise
            `callbacks`, and `base=data/cifar10` adds another configuration between the file and the other overrides. A
            component that replaces another starts from its defaults; a warning lists what changes by that.

    Raises:
        ConfigError: a line for each error, with the key, the value, the rule and the next step.

    >>> load_config("quickstart", ["optim.lr=0.5"]).optim.lr
    0.5
    """
    from raysl.storage.addresses import absolute  # imports pyarrow

    config = load.load_config(name_or_path, overrides, run_of_weights)
    # as the locations of its images: a program may change its directory before it trains
    return replace(config, storage=absolute(config.storage))


def run_of_weights(weights: str, storage: str) -> str:
    """Return a run of raysl with these weights: they themselves, or a run in `storage` that they are converted into.

    Args:
        weights: value of `method.weights`; what is neither a file nor a published network is returned as it is.
        storage: path or URI of the folder of the runs.

    Raises:
        ConfigError: if the weights cannot be converted, or the folder for the run holds something else.
        StorageError: if they cannot be downloaded.
    """
    if is_trained(weights) or (name := _name_of(weights)) is None:
        return weights
    # torch and pyarrow, which most configurations need not wait for
    from raysl.checkpoint.checkpoint_folder import META_FILE, checkpoint_name, newest_whole
    from raysl.process.temporary import temporary_folder
    from raysl.storage.folder import Folder, absolute, join
    from raysl.weights.imported import METHOD, write_imported

    out, where = Folder(join(absolute(storage), name)), redact_uri(weights)
    names, checkpoint = out.names(), checkpoint_name(0)
    if names and newest_whole(out).meta.get("method") == METHOD:
        log.info("method.weights=%s: it was converted before, into %s", where, redact_uri(out.uri))
        return out.uri
    # a conversion that was interrupted left a checkpoint without the file that is written last
    if names and (names != [checkpoint] or out.child(checkpoint).exists(META_FILE)):
        raise ConfigError(
            f"method.weights: {where} is converted into {redact_uri(out.uri)}, which holds something else or is "
            "damaged; delete that folder, or set another storage="
        )
    loaded = _read(weights, name)
    # another process, such as a run with another seed, may have converted them in these minutes
    if newest_whole(out).meta.get("method") != METHOD:
        with temporary_folder("weights") as draft:
            write_imported(loaded.backbone, loaded.config, loaded.facts, Path(draft), out)
    log.info(
        "method.weights=%s: converted from the layout of %s into %s: %s",
        *(where, loaded.facts["layout"], redact_uri(out.uri), loaded.table.line if loaded.table else ""),
    )
    return out.uri


def _name_of(weights: str) -> str | None:
    """Return the name of the run that weights are converted into; None for what is no file and no published network."""
    if weights.startswith(LIBRARIES):
        return re.sub(r"[^\w.-]", "_", weights)
    from pyarrow import fs

    from raysl.config.places import WEIGHTS
    from raysl.storage.addresses import absolute, cut, stat_uri

    address = absolute(weights)
    try:
        info = stat_uri(address)[1]
    except ConfigError:  # whoever reads the weights says so
        return None
    file = cut(address)[1]
    if info.type == fs.FileType.NotFound and file.endswith(WEIGHTS):
        raise ConfigError(
            f"method.weights: nothing is at {redact_uri(weights)!r}; give a file of weights, a run or checkpoint of "
            "raysl, or a published network as timm:NAME"
        )
    if info.type != fs.FileType.File:
        return None
    digest = hashlib.sha256(f"{address} {info.size} {info.mtime_ns}".encode()).hexdigest()[:8]
    return re.sub(r"[^\w-]", "_", f"{file.partition('.')[0]}_{digest}")


def _read(weights: str, name: str) -> "Loaded":
    """Read the backbone of a file, or of a published network, which is downloaded into its library's cache."""
    from raysl.components import resolve
    from raysl.methods.shared.teacher_networks import library_config
    from raysl.weights.convert import load_weights

    if not weights.startswith(LIBRARIES):
        try:
            return load_weights(weights, name=name)
        except ConfigError as error:
            raise type(error)(
                f"method.weights: {error}. If the file needs rules, `raysl convert {redact_uri(weights)} --out "
                "runs/theirs` takes them as options, such as --key, --prefix or --part; then give "
                "method.weights=runs/theirs"
            ) from error
    config = library_config(weights)
    try:
        published = resolve("backbone", config.name).published(config)
    except ConfigError as error:
        text = str(error).removeprefix("backbone.model: ").removeprefix("backbone.pretrained: ")
        advice = "; a file of these weights does too: method.weights=FILE" if isinstance(error, StorageError) else ""
        raise type(error)(f"method.weights={weights}: {text}{advice}") from error
    images = [f"data.mean={[*published.mean]}", f"data.std={[*published.std]}"]
    try:
        loaded = load_weights(str(published.file.path), images, name=name)
    except ConfigError as error:
        pretrained = "true" if config.pretrained is True else config.pretrained
        raise ConfigError(
            f"method.weights={weights} does not fit raysl's ResNet or ViT; in its place give backbone={config.name} "
            f"backbone.model={config.model} backbone.pretrained={pretrained}"
        ) from error
    log.info("method.weights=%s: its images were normalised by %s", weights, " ".join(images).replace(", ", ","))
    return replace(loaded, facts={**loaded.facts, "uri": published.file.uri, "name": published.name})
