"""Reading weights of one kind and writing another: `raysl convert`."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from raysl.checkpoint.backbone import load_checkpoint
from raysl.components import resolve
from raysl.config.arguments import instance, words
from raysl.config.build import from_dict
from raysl.config.dump import plain
from raysl.config.layers import parse_overrides
from raysl.config.linked import backbone_size_overrides, link_channels
from raysl.config.load import apply_overrides
from raysl.config.schema import RunConfig
from raysl.errors import ConfigError, did_you_mean
from raysl.nn.backbones.backbone import Backbone
from raysl.nn.backbones.vit import SIZES
from raysl.process.temporary import temporary_folder
from raysl.redact import redact_uri
from raysl.storage.folder import Folder, absolute, cut
from raysl.trained import is_trained, unpacked
from raysl.weights.described import described_config, read_description
from raysl.weights.dino_v3 import with_meta_names
from raysl.weights.exports import EXPORTS, FOLDER_FILES
from raysl.weights.fill import Loaded, Table, check_filled, fill, rename
from raysl.weights.imported import METHOD, NAME, write_imported
from raysl.weights.layouts import OWN, Location, Rules, StoredBackbone
from raysl.weights.names import plain_names
from raysl.weights.search import find_backbone, find_named
from raysl.weights.shapes import derive_settings
from raysl.weights.weight_files import is_checkpoint, local_file, read_tree

KINDS = ("raysl", *EXPORTS)
"""Kinds that weights can be converted to."""
_SMALL = 32  # pixels; networks with the CIFAR stem are trained on images of this side


@dataclass(frozen=True)
class Converted:
    """The result of a conversion.

    Args:
        path: the file or folder that was written.
        summary: a sentence on what was read.
        table: tensors of the file that were taken; None where a checkpoint of raysl was read.
        usage: a line of code that reads the result.
    """

    path: str
    summary: str
    table: Table | None
    usage: str


def convert(
    source: str,
    out: str,
    overrides: Sequence[str] = (),
    rules: Rules | None = None,
    to: str = "raysl",
) -> Converted:
    """Read the weights of a backbone, and write them for raysl or for another library.

    >>> import tempfile
    >>> from raysl.nn.backbones.resnet import ResNet
    >>> folder = tempfile.TemporaryDirectory()
    >>> tensors = ResNet(ResNet.Config(depth=10, width=8)).state_dict()
    >>> torch.save({"state_dict": tensors}, f"{folder.name}/weights.pth")
    >>> converted = convert(f"{folder.name}/weights.pth", f"{folder.name}/run")
    >>> converted.table.missing
    []

    Args:
        source: path or URI of a file of weights, or of a checkpoint or a run of raysl; or `cifar10/simclr`.
        out: path or URI of what is written: a folder for `raysl` and `safetensors`, else a file.
        overrides: settings of the backbone and of the images that it expects, in place of those derived from the
            tensors: `backbone.image_size=96`, `data.mean=[0.5,0.5,0.5]`. A network other than a ResNet or a ViT is
            named here: `backbone=timm`, `backbone.model=convnext_tiny`.
        rules: how to find the backbone in the file; the defaults find every layout in `raysl.weights.layouts`.
        to: one of `KINDS`.

    Raises:
        ConfigError: if the file holds no weights, its layout is unknown, its tensors do not fill the backbone, the
            other library has no such network, or `out` exists.
    """
    if to not in KINDS:
        raise ConfigError(f"to={to!r}: {did_you_mean(to, KINDS)}known: {', '.join(KINDS)}")
    source, out = _address(source), absolute(out)
    folder_uri, name = cut(out)
    _check_free(out, is_folder=to in ("raysl", "safetensors"), cut_off=FOLDER_FILES if to == "safetensors" else ())
    loaded = load_weights(source, overrides, rules, name)
    if to == "raysl":
        if loaded.table is None:
            raise ConfigError(f"{source} is a checkpoint of raysl already; give to= (--to), the kind to convert it to")
        with temporary_folder("weights") as folder:
            path = write_imported(loaded.backbone, loaded.config, loaded.facts, Path(folder), Folder(out))
        return Converted(Folder(out).uri, loaded.summary, loaded.table, f"raysl.load_backbone({path!r})")
    written = EXPORTS[to](loaded)
    target = Folder(out if isinstance(written.content, dict) else folder_uri)
    target.make()
    files = written.content if isinstance(written.content, dict) else {name: written.content}
    # all files are compared before one is written, so that a refusal changes nothing
    for file, content in files.items():
        if target.read_if_there(file) not in (b"", content):  # equal ones are of an export that was cut off
            raise _in_use(out, file)
    for file, content in files.items():
        target.write(file, content)
    path = redact_uri(out)
    usage = written.usage.replace("'PATH/", f"'{path}/").replace("PATH", repr(path))
    return Converted(path, loaded.summary, loaded.table, usage)


def load_weights(
    source: str, overrides: Sequence[str] = (), rules: Rules | None = None, name: str = "weights"
) -> Loaded:
    """Read the backbone of a file of weights, or of a checkpoint or a run of raysl.

    Args:
        source, overrides, rules: arguments of `convert`.
    """
    source, rules = _address(source), instance(rules or Rules(), Rules, "rules", "raysl.weights.layouts.Rules(...)")
    overrides = words(overrides, "overrides", "backbone.image_size=96")
    for word in overrides:
        if not word.startswith(("backbone.", "backbone=", "data.", "data=")):
            raise ConfigError(
                f"{word!r} is not a setting of the backbone or its images; those begin with backbone. or data."
            )
    if is_checkpoint(source):
        return _load_checkpoint(source, overrides, rules)
    where, chosen = redact_uri(absolute(source)), _backbone_settings(overrides)
    if chosen.get("pretrained", False) is not False:
        raise ConfigError(
            f"backbone.pretrained={chosen['pretrained']}: the weights are those of {where}; leave it out, or give it "
            "to raysl pretrain in place of method.weights"
        )
    with local_file(source) as path:
        folder, file = cut(str(path))
        digest = Folder(folder).sha256(file)
        tree = read_tree(path, rules.trust_code)
        # an export of raysl says what its network is, but rules that the user gives go before that
        is_left_to_us = (rules.layout, rules.part, rules.key, rules.prefix) == (None,) * 4
        description = read_description(path) if is_left_to_us else None
    described = None if description is None else described_config(description, name, where, rules.trust_code)
    if described is not None and chosen.get("name", described.backbone.name) == described.backbone.name:
        # a backbone for another side expects images of that side, unless data.image_size follows
        side = [f"data.image_size={chosen['image_size']}"] if "image_size" in chosen else []
        config = _override(described, [*side, *overrides])
        seen = {key: value for key, value in plain(described.backbone).items() if value is not None}
        backbone = _build(config)
        stored = StoredBackbone(OWN, Location(), "named", backbone.renamed(tree))
    else:
        backbone, config, stored, seen = _recognise(plain_names(with_meta_names(tree)), name, where, rules, overrides)
    if rules.grid is not None and not (stored.family == "vit" and "pos_embed" in stored.tensors):
        raise ConfigError(f"grid={rules.grid!r} is for files of ViTs with position embeddings; leave it out")
    table = fill(backbone, stored, rules.skip)
    if rules.strict:
        check_filled(table, where, chosen, _with_size_spelt_out(seen))
    facts = {
        "uri": where,
        "layout": stored.layout.name,
        "place": str(stored.location),
        "sha256": {file: digest},
        "taken": [f"backbone ({len(table.loaded)} tensors)"],
        "left_out": table.problems,
    }
    summary = _describe_file(file, stored.layout.name, str(stored.location))
    return Loaded(backbone.eval(), config, where, summary, table, facts)


def _recognise(
    tree: Mapping[str, Any], name: str, where: str, rules: Rules, overrides: Sequence[str]
) -> tuple[Backbone, RunConfig, StoredBackbone, dict[str, Any]]:
    """Find the backbone in a file of others; return it fresh, its settings, its tensors and the settings they show."""
    library = _backbone_settings(overrides).get("name")
    # the shapes of these networks' tensors show their settings; any other is built first, from the user's settings
    if library in (None, "resnet", "vit"):
        stored = rename(find_backbone(tree, rules, where), rules.grid, where)
        seen = derive_settings(stored, where)
        config = _configure(name, where, stored.layout.name, seen, overrides)
        return _build(config), config, stored, seen
    seen = {"name": library}
    config = _configure(name, where, str(library), seen, overrides)
    backbone = _build(config)
    return backbone, config, find_named(tree, backbone, rules, where), seen


def _build(config: RunConfig) -> Backbone:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)  # for parameters that the file does not hold
        backbone: Backbone = resolve("backbone", config.backbone.name)(config.backbone)
    return backbone


def _describe_file(file: str, layout: str, location: str) -> str:
    return f"Its weights are those of `{file}`, in the layout of {layout} ({location})."


def _load_checkpoint(source: str, overrides: Sequence[str], rules: Rules) -> Loaded:
    if rules != Rules(trust_code=rules.trust_code):
        raise ConfigError(
            f"{source} is a run or a checkpoint of raysl, whose backbone is known: leave out layout, part, key, "
            "prefix, grid, skip and strict"
        )
    if overrides:
        raise ConfigError(f"{source} has its own settings, which {overrides[0]!r} cannot change; leave it out")
    checkpoint = load_checkpoint(source, rules.trust_code)
    method, where = checkpoint.meta["method"], redact_uri(checkpoint.uri)
    if method == METHOD:
        origin = checkpoint.meta["weights"]
        summary = _describe_file(cut(origin["uri"])[1], origin["layout"], origin["place"])
    else:
        summary = f"It was trained by raysl with the method {method}, for {checkpoint.meta['step']:,} steps."
    return Loaded(checkpoint.backbone, checkpoint.config, where, summary)


def _configure(name: str, where: str, layout: str, seen: dict[str, Any], overrides: Sequence[str]) -> RunConfig:
    """Return the settings of a run that holds the backbone: those derived, overridden by the user's."""
    images = {"channels": seen["in_channels"]} if "in_channels" in seen else {}
    tree = {
        "name": name,
        "method": {"name": NAME, "origin": where, "layout": layout},
        "backbone": seen,
        "data": {"name": "photos", **images},  # a placeholder: weights come without images
        "optim": {"name": "sgd"},
    }
    data_words = _of_images(overrides)
    config = _override(from_dict(link_channels(tree)), [word for word in overrides if word not in data_words])
    # the side of the images follows from the backbone, whose settings are therefore applied first
    backbone: Any = config.backbone
    is_small = getattr(backbone, "stem", "") == "cifar"
    side = _SMALL if is_small else resolve("backbone", backbone.name).without_weights(backbone).native_size
    return _override(config, [f"data.image_size={side}", *data_words])


def _override(config: RunConfig, overrides: Sequence[str]) -> RunConfig:
    """Change settings of the backbone, then those of the images, which leave the size of the backbone as it is."""
    data_words = _of_images(overrides)
    config = apply_overrides(config, [word for word in overrides if word not in data_words])
    return apply_overrides(config, [*data_words, *backbone_size_overrides(config)]) if data_words else config


def _of_images(overrides: Sequence[str]) -> list[str]:
    return [word for word in overrides if word.startswith("data")]


def _backbone_settings(overrides: Sequence[str]) -> Mapping[str, Any]:
    node = parse_overrides(overrides).get("backbone", {})
    return node if isinstance(node, dict) else {"name": node}


def _with_size_spelt_out(seen: Mapping[str, Any]) -> dict[str, Any]:
    """Add width, depth and heads to the settings of a ViT that have its size."""
    if "size" not in seen:
        return dict(seen)
    width, depth, heads = SIZES[seen["size"]]
    return {"width": width, "depth": depth, "heads": heads, **seen}


def _address(source: str) -> str:
    """Return the address of what is read: of a backbone that comes with raysl, that of its copy in the cache folder."""
    return unpacked(str(source)) if is_trained(source) else absolute(source)


def _check_free(out: str, is_folder: bool, cut_off: Collection[str] = ()) -> None:
    """Refuse to overwrite anything but files of an export that may have been cut off."""
    folder, name = cut(out)
    if not name:
        raise ConfigError(f"out={out!r} names no {'folder' if is_folder else 'file'}; give one after the last /")
    if is_folder and (names := [name for name in Folder(out).names() if name not in cut_off]):
        raise _in_use(out, names[0])
    if not is_folder and Folder(folder).exists(name):
        raise ConfigError(f"{redact_uri(out)} exists; delete it, or give another file")


def _in_use(out: str, name: str) -> ConfigError:
    return ConfigError(f"{redact_uri(out)} is in use, it holds {name}; give an empty folder, or a new one")
