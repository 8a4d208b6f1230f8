"""A backbone filled with tensors that others named, and a table of what was loaded, missing or left over."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from raysl.checkpoint.weights import is_counter
from raysl.config.schema import RunConfig
from raysl.errors import ConfigError
from raysl.nn.backbones.adapt import adapt
from raysl.nn.backbones.backbone import Backbone
from raysl.nn.backbones.positions import resize_positions
from raysl.nn.backbones.vit import ViT
from raysl.weights.dino_v3 import PERIODS, with_whole_biases
from raysl.weights.layouts import StoredBackbone
from raysl.weights.names import with_fused_gates
from raysl.weights.shapes import grid_side, with_square_positions

FIRST = 3
"""Tensors that a message names."""
_OTHERS = ("norm_pre", "fc_norm", "dist_token", "rope", "rel_pos")
"""Parts of other libraries' ViTs that change features and that raysl's ViT lacks."""
_STATISTICS = ("running_mean", "running_var")
_RENAMED = {
    "masked_embed": "mask_token",  # iBOT
    "patch_masking.masked_embed": "mask_token",  # VISSL
    "class_token": "cls_token",  # VISSL before its DINO
    "pos_embedding": "pos_embed",
    "register_tokens": "reg_token",  # DINOv2
    "storage_tokens": "reg_token",  # DINOv3
}
"""raysl's name of a ViT's tensor, by the name in other libraries."""


@dataclass(frozen=True)
class Table:
    """Names of tensors of a file and of a backbone, by what happened to them.

    Args:
        loaded: taken from the file.
        missing: not in the file; the backbone keeps its initial values.
        unexpected: tensors in the file and not in the backbone, such as heads.
        extra: the unexpected ones that belong to another backbone.
        mismatched: tensors of another shape, as "name is ... there and ... here", or with values that are NaN or
            infinite; the backbone keeps its initial values.
        skipped: left out on request.
        resized: tensors that were adapted to another grid, other patches or channels; they are in `loaded` too.
        others: rules that choose each of the other networks of the file.
        num_outside: tensors of the file without the prefix.
        num_patches: patches along a side of the grid that a ViT's position embeddings were read for; 0: none.

    >>> table = Table(loaded=["conv1.weight"], missing=["bn1.weight"], num_wanted=2)
    >>> print(table.text())
    loaded      1 of 2 tensors
    missing     1 (bn1.weight)
    """

    loaded: Sequence[str] = ()
    missing: Sequence[str] = ()
    unexpected: Sequence[str] = ()
    extra: Sequence[str] = ()
    mismatched: Sequence[str] = ()
    skipped: Sequence[str] = ()
    resized: Sequence[str] = ()
    others: Sequence[str] = ()
    num_outside: int = 0
    num_wanted: int = field(default=0, repr=False)
    num_patches: int = 0

    @property
    def problems(self) -> list[str]:
        """A message for each tensor in which the backbone differs from the file."""
        return [
            *self.mismatched,
            *(f"{name} is not there" for name in self.missing),
            *(f"{name} is there and not here" for name in self.extra),
        ]

    def __repr__(self) -> str:
        """What a notebook shows, in place of all names."""
        return f"Table({self.line})"

    @property
    def line(self) -> str:
        """The lines of `text` in one."""
        return "; ".join(" ".join(line.split()) for line in self.text().splitlines())

    def text(self) -> str:
        """Write a line for each kind that has tensors, with their first names."""
        rows = {
            f"loaded      {len(self.loaded)} of {self.num_wanted} tensors": [],
            f"resized     {len(self.resized)}": self.resized,
            f"missing     {len(self.missing)}": self.missing,
            f"mismatched  {len(self.mismatched)}": self.mismatched,
            f"unexpected  {len(self.unexpected)}": self.unexpected,
            f"skipped     {len(self.skipped)}": self.skipped,
            f"outside     {self.num_outside}": ["with another prefix"] if self.num_outside else [],
            f"others      {len(self.others)} more in the file": self.others,
            f"positions   {self.num_patches}x{self.num_patches} patches": [],
        }
        always = ("loaded", "missing", *(["positions"] if self.num_patches else []))
        is_shown = {head for head, names in rows.items() if names or head.startswith(always)}
        return "\n".join(
            f"{head}{f' ({_first(rows[head])})' if rows[head] else ''}" for head in rows if head in is_shown
        )


@dataclass(frozen=True)
class Loaded:
    """A backbone that was read from a file or a checkpoint.

    Args:
        config: settings of the network; `config.data` says which images it expects.
        origin: address of the file or the checkpoint, without credentials.
        summary: a sentence on where the weights are from.
        table: result of `fill` for a file; None for a checkpoint, whose backbone is complete.
        facts: entries of `meta.json`: address, layout, hash, and number of tensors taken.
    """

    backbone: Backbone
    config: RunConfig
    origin: str
    summary: str
    table: Table | None = None
    facts: dict[str, Any] = field(default_factory=dict)


def rename(stored: StoredBackbone, grid: str | None, where: str) -> StoredBackbone:
    """Give tensors raysl's names and shapes, without those that the layout lists as parts of other modules.

    Args:
        grid: rows and columns of a ViT's patches, "14x14", where the user gave them.

    Raises:
        ConfigError: if a ViT's position embeddings are not those of a square of patches, or fit several.
    """
    tensors = {
        (_vit_name(name) if stored.family == "vit" else name.replace(".shortcut.", ".downsample.")): value
        for name, value in stored.tensors.items()
        if not (stored.layout.skip and name.startswith(stored.layout.skip))
    }
    if stored.family == "vit":
        tensors = with_square_positions(with_fused_gates(with_whole_biases(tensors)), grid, where)
        if "mask_token" in tensors:
            tensors["mask_token"] = tensors["mask_token"].reshape(1, 1, -1)
    return replace(stored, tensors=tensors)


def fill(backbone: Backbone, stored: StoredBackbone, skip: Sequence[str]) -> Table:
    """Copy the tensors that fit into a backbone.

    Args:
        backbone: changed in place; parameters without a fitting tensor stay as they are.
        stored: the tensors, as `rename` returns them.
        skip: tensors whose names contain one of these texts are left out.
    """
    wanted = backbone.state_dict()
    tensors = dict(stored.tensors)
    if isinstance(backbone, ViT) and backbone.rope is not None:
        tensors.pop(PERIODS, None)  # computed by `RotaryPositions`
    skipped = [name for name in dict.fromkeys([*wanted, *tensors]) if any(text in name for text in skip)]
    given_tensors = {name: value for name, value in tensors.items() if name not in skipped}
    resized, side = [], 0
    if isinstance(backbone, ViT) and "pos_embed" in given_tensors:
        side = grid_side(given_tensors["pos_embed"])
        if (side, side) != backbone.native_grid:
            given_tensors["pos_embed"] = _resized(given_tensors["pos_embed"], (side, side), backbone)
            resized = [f"pos_embed from {side}x{side} to {'x'.join(map(str, backbone.native_grid))} patches"]
    for name, value in adapt(backbone, given_tensors)[0].items():
        if name in given_tensors and value.shape != given_tensors[name].shape:
            resized.append(f"{name} from {list(given_tensors[name].shape)} to {list(value.shape)}")
            given_tensors[name] = value
    # one NaN would reach every feature, so such a tensor counts as not fitting
    broken = [name for name, value in given_tensors.items() if name in wanted and not bool(value.isfinite().all())]
    fits = {
        name: value
        for name, value in given_tensors.items()
        if name in wanted and wanted[name].shape == value.shape and name not in broken
    }
    backbone.load_state_dict(fits, strict=False)
    unexpected = [name for name in given_tensors if name not in wanted]
    trunk = {name.partition(".")[0] for name in wanted}
    return Table(
        loaded=list(fits),
        missing=[name for name in wanted if name not in tensors and name not in skipped and not is_counter(name)],
        unexpected=unexpected,
        extra=[name for name in unexpected if name.partition(".")[0] in trunk or name.startswith(_OTHERS)],
        mismatched=[
            *(f"{name} has values that are NaN or infinite" for name in broken),
            *(
                f"{name} is {list(value.shape)} there and {list(wanted[name].shape)} here"
                for name, value in given_tensors.items()
                if name in wanted and name not in fits and name not in broken
            ),
        ],
        skipped=skipped,
        resized=resized,
        others=[one.rules for one in stored.others],
        num_outside=stored.num_outside,
        num_wanted=len(wanted),
        num_patches=side,
    )


def check_filled(table: Table, where: str, typed: Mapping[str, object], seen: Mapping[str, object]) -> None:
    """Refuse a backbone of which some tensors were not filled.

    Args:
        typed: settings of the backbone that the user gave.
        seen: settings that the shapes of the tensors show.
    """
    if not (problems := table.problems):
        return
    # the likeliest cause first: a setting that the user typed, another kind of norm, another network, another file
    wrong = [f"backbone.{key}={value}" for key, value in typed.items() if key in seen and seen[key] != value]
    if wrong:
        right = " ".join(f"backbone.{key}={seen[key]}" for key, value in typed.items() if seen.get(key, value) != value)
        advice = f"{' '.join(wrong)} does not fit the tensors, which have {right}: leave that setting out"
    elif table.missing and all(name.endswith(_STATISTICS) for name in table.missing) and "norm" not in typed:
        advice = (
            "its norms have no running statistics: give backbone.norm=layer, or backbone.norm=group and its "
            "backbone.norm_groups"
        )
    elif "model" in typed:
        advice = f"give the file's own backbone.model in place of {typed['model']}, and its backbone.image_size"
    else:
        advice = "give another file, or its other layout, key or prefix"
    more = f", and {len(problems) - FIRST} more such tensors" if len(problems) > FIRST else ""
    raise ConfigError(
        f"{where} does not fill the backbone: {'; '.join(problems[:FIRST])}{more}; {advice}. strict=False, on the "
        "command line --no-strict, takes what fits and leaves the rest at its seed"
    )


def _vit_name(name: str) -> str:
    """Return raysl's name of a ViT's tensor; BEiT and iBOT keep the factors of layer scale in the block itself."""
    return _RENAMED.get(name) or re.sub(r"\.gamma_([12])$", r".ls\1.gamma", name)


def _resized(positions: Tensor, old: tuple[int, int], backbone: ViT) -> Tensor:
    patches = resize_positions(positions[:, 1:], old, backbone.native_grid, backbone.config.position_resize)
    return torch.cat([positions[:, :1], patches], dim=1)


def _first(names: Sequence[str]) -> str:
    more = f", and {len(names) - FIRST} more" if len(names) > FIRST else ""
    return f"{', '.join(names[:FIRST])}{more}"
