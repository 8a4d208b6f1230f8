"""From weights of one kind to weights of another: `raysl convert`."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from raysl.checkpoint.backbone import load_checkpoint
from raysl.checkpoint.files import META_FILE
from raysl.components import resolve
from raysl.config.arguments import instance, words
from raysl.config.build import from_dict
from raysl.config.layers import parse_overrides
from raysl.config.load import apply_overrides
from raysl.config.schema import RunConfig
from raysl.config.sizes import made_for
from raysl.errors import ConfigError
from raysl.nn.backbones.backbone import Backbone
from raysl.nn.backbones.vit import SIZES
from raysl.redact import redact_uri
from raysl.storage.addresses import absolute, cut
from raysl.storage.folder import Folder
from raysl.weights.exports import EXPORTS
from raysl.weights.files import draft, is_checkpoint, local_file, read_tree
from raysl.weights.fill import Table, check_filled, fill, renamed
from raysl.weights.imported import METHOD, NAME, write_imported
from raysl.weights.layouts import Rules, find_backbone
from raysl.weights.loaded import Loaded
from raysl.weights.shapes import settings_of

KINDS = ("raysl", *EXPORTS)
"""What weights are converted to."""
_SMALL = 32  # pixels, what networks with the stem for small images are trained on


@dataclass(frozen=True)
class Converted:
    """What was written.

    Args:
        path: where: a file or a folder.
        told: in words, what was read.
        table: what became of the file's tensors; None where a checkpoint of raysl was read.
        usage: how it is read again.
    """

    path: str
    told: str
    table: Table | None
    usage: str


def convert(
    source: str, out: str, to: str = "raysl", overrides: Sequence[str] = (), rules: Rules | None = None
) -> Converted:
    """Read the weights of a backbone, and write them for raysl or for another library.

    Args:
        source: path or URI of a file of weights, or of a checkpoint or a run of raysl.
        out: where to: for `raysl` and `safetensors` a folder, else a file; a path or a URI.
        to: one of `KINDS`.
        overrides: settings of the backbone and of the images that it expects, over those that are seen in the tensors:
            `backbone.image_size=96`, `data.mean=[0.5,0.5,0.5]`.
        rules: how the backbone is found in the file; the defaults know the layouts in `raysl.weights.layouts`.

    Raises:
        ConfigError: if the file is none of weights, its layout is not known, its tensors do not fill the backbone, the
            other library has no such network, or something is in the way of `out`.
    """
    if to not in KINDS:
        near = difflib.get_close_matches(to, KINDS, n=1)
        raise ConfigError(f"to={to!r}: {f'did you mean {near[0]!r}? ' if near else ''}known: {', '.join(KINDS)}")
    source, out = absolute(source), absolute(out)
    _check_free(out, is_folder=to in ("raysl", "safetensors"))
    _, name = cut(absolute(out))
    loaded = load_weights(source, overrides, rules, name)
    if to == "raysl":
        if loaded.table is None:
            raise ConfigError(f"{source} is a checkpoint of raysl already; say with to= (--to) what to make of it")
        with draft() as folder:
            path = write_imported(loaded.backbone, loaded.config, loaded.facts, folder, Folder(out))
        return Converted(Folder(out).uri, loaded.told, loaded.table, f"raysl.load_backbone({path!r})")
    written = EXPORTS[to](loaded)
    folder_uri, name = cut(absolute(out))
    target = Folder(out if isinstance(written.content, dict) else folder_uri)
    target.make()
    for file, content in written.content.items() if isinstance(written.content, dict) else [(name, written.content)]:
        target.write(file, content)
    path = redact_uri(absolute(out))
    usage = written.usage.replace("'PATH/", f"'{path}/").replace("PATH", repr(path))
    return Converted(path, loaded.told, loaded.table, usage)


def load_weights(
    source: str, overrides: Sequence[str] = (), rules: Rules | None = None, name: str = "weights"
) -> Loaded:
    """Read the backbone of a file of weights, or of a checkpoint or a run of raysl.

    Args:
        source, overrides, rules: as `convert` takes them.
        name: that its settings get.

    Raises:
        ConfigError: as `convert` does.
    """
    source, rules = absolute(source), instance(rules or Rules(), Rules, "rules", "raysl.weights.layouts.Rules(...)")
    overrides = words(overrides, "overrides", "backbone.image_size=96")
    for word in overrides:
        if not word.startswith(("backbone.", "backbone=", "data.", "data=")):
            raise ConfigError(
                f"{word!r} is no setting of the backbone or its images: those begin with backbone. or data."
            )
    if is_checkpoint(source):
        return _of_checkpoint(source, overrides, rules)
    where = redact_uri(absolute(source))
    with local_file(source) as path:
        folder, file = cut(str(path))
        digest = Folder(folder).sha256(file)
        found = renamed(find_backbone(read_tree(path, rules.trust_code), rules, where))
    seen = settings_of(found, where)
    config = _settled(name, where, found.layout.name, seen, overrides)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)  # for what the file does not hold
        backbone: Backbone = resolve("backbone", config.backbone.name)(config.backbone)
    table = fill(backbone, found, rules.skip, where)
    if rules.strict:
        check_filled(table, where, _of_backbone(overrides), _spelt(seen))
    facts = {
        "uri": where,
        "layout": found.layout.name,
        "place": str(found.place),
        "sha256": {file: digest},
        "taken": [f"backbone ({len(table.loaded)} tensors)"],
        "left_out": table.problems,
    }
    told = _told(file, found.layout.name, str(found.place))
    return Loaded(backbone.eval(), config, where, told, table, facts)


def _told(file: str, layout: str, place: str) -> str:
    return f"Its weights are those of `{file}`, in the layout of {layout} ({place})."


def _of_checkpoint(source: str, overrides: Sequence[str], rules: Rules) -> Loaded:
    if rules != Rules(trust_code=rules.trust_code):
        raise ConfigError(
            f"{source} is a run or a checkpoint of raysl, whose backbone is known: leave layout, part, key, prefix, "
            "skip and strict out"
        )
    if overrides:
        raise ConfigError(f"{source} has its own settings, {overrides[0]!r} does not change them; leave it out")
    found = load_checkpoint(source, rules.trust_code)
    method, where = found.meta["method"], redact_uri(found.uri)
    if method == METHOD:
        origin = found.meta["weights"]
        told = _told(cut(origin["uri"])[1], origin["layout"], origin["place"])
    else:
        told = f"It was trained by raysl with the method {method}, for {found.meta['step']:,} steps."
    return Loaded(found.backbone, found.config, where, told)


def _settled(name: str, where: str, layout: str, seen: dict[str, Any], overrides: Sequence[str]) -> RunConfig:
    """The settings of a run that holds the backbone: as it was seen, with the user's over it."""
    tree = {
        "name": name,
        "method": {"name": NAME, "origin": where, "layout": layout},
        "backbone": seen,
        "data": {"name": "photos"},  # none came with the weights
        "optim": {"name": "sgd"},
    }
    of_data = [word for word in overrides if word.startswith("data")]
    config = apply_overrides(from_dict(tree), [word for word in overrides if word not in of_data])
    backbone: Any = config.backbone
    side = _SMALL if getattr(backbone, "stem", "") == "cifar" else getattr(backbone, "image_size", 224)
    return apply_overrides(config, [f"data.image_size={side}", *of_data, *made_for(config)])


def _of_backbone(overrides: Sequence[str]) -> Mapping[str, Any]:
    """The settings of the backbone that the user gave."""
    node = parse_overrides(overrides).get("backbone", {})
    return node if isinstance(node, dict) else {"name": node}


def _spelt(seen: Mapping[str, Any]) -> dict[str, Any]:
    """What was seen in the tensors, with what a ViT's size stands for."""
    if "size" not in seen:
        return dict(seen)
    width, depth, heads = SIZES[seen["size"]]
    return {"width": width, "depth": depth, "heads": heads, **seen}


def _check_free(out: str, is_folder: bool) -> None:
    """Refuse to write over something."""
    folder, name = cut(absolute(out))
    if not name:
        raise ConfigError(f"out={out!r} names no {'folder' if is_folder else 'file'}; give one behind the last /")
    if is_folder:
        names = Folder(out).names()
        kept = [found for found in names if found == META_FILE or found.startswith("checkpoint_")] or names
        if kept:
            raise ConfigError(f"{redact_uri(out)} is in use, it holds {kept[0]}; give an empty folder, or a new one")
    elif Folder(folder).exists(name):
        raise ConfigError(f"{redact_uri(out)} exists; delete it, or give another file")
