"""Fills a backbone with tensors that others named, and says of each what became of it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from raysl.errors import ConfigError
from raysl.nn.backbones.backbone import Backbone
from raysl.nn.backbones.positions import resize_positions
from raysl.nn.backbones.vit import ViT
from raysl.weights.layouts import Found
from raysl.weights.shapes import side_of

FIRST = 3
"""How many tensors a message names."""
_OTHERS = ("norm_pre", "fc_norm", "dist_token", "rope", "rel_pos")
"""Parts of others' ViTs that raysl's lack, and that change features."""
_RENAMED = {
    "masked_embed": "mask_token",  # iBOT
    "patch_masking.masked_embed": "mask_token",  # VISSL
    "class_token": "cls_token",  # VISSL before its DINO
    "pos_embedding": "pos_embed",
    "register_tokens": "reg_token",  # DINOv2
}
"""A ViT's tensors by other names."""


@dataclass(frozen=True)
class Table:
    """What became of the tensors of a file and of a backbone, by name.

    Args:
        loaded: are the file's now.
        missing: of the backbone, not in the file: they stay at their seed.
        unexpected: in the file, not of the backbone: heads, as a rule.
        extra: those among them that belong to a backbone, another one than this.
        mismatched: of another shape, "name is ... there and ... here": they stay at their seed.
        skipped: left out on request.
        resized: position embeddings for another grid, interpolated; they are among `loaded`.
        num_outside: tensors of the file that the prefix leaves out.
    """

    loaded: Sequence[str] = ()
    missing: Sequence[str] = ()
    unexpected: Sequence[str] = ()
    extra: Sequence[str] = ()
    mismatched: Sequence[str] = ()
    skipped: Sequence[str] = ()
    resized: Sequence[str] = ()
    num_outside: int = 0
    num_wanted: int = field(default=0, repr=False)

    @property
    def problems(self) -> list[str]:
        """In words, each tensor for which the backbone is not the file's."""
        return [
            *self.mismatched,
            *(f"{name} is not there" for name in self.missing),
            *(f"{name} is there and not here" for name in self.extra),
        ]

    def text(self) -> str:
        """A line for each kind, with the first names of it."""
        rows = {
            f"loaded      {len(self.loaded)} of {self.num_wanted} tensors": [],
            f"resized     {len(self.resized)}": self.resized,
            f"missing     {len(self.missing)}": self.missing,
            f"mismatched  {len(self.mismatched)}": self.mismatched,
            f"unexpected  {len(self.unexpected)}": self.unexpected,
            f"skipped     {len(self.skipped)}": self.skipped,
            f"outside     {self.num_outside}": ["behind another prefix"] if self.num_outside else [],
        }
        is_shown = {head for head, names in rows.items() if names or head.startswith(("loaded", "missing"))}
        return "\n".join(
            f"{head}{f' ({_first(rows[head])})' if rows[head] else ''}" for head in rows if head in is_shown
        )


def renamed(found: Found) -> Found:
    """The same tensors by raysl's names and in its shapes, without those that the layout knows to be no backbone's."""
    tensors = {
        (_own_name(name) if found.family == "vit" else name): value
        for name, value in found.tensors.items()
        if not (found.layout.skip and name.startswith(found.layout.skip))
    }
    if found.family == "vit":
        if "mask_token" in tensors:
            tensors["mask_token"] = tensors["mask_token"].reshape(1, 1, -1)
        if "pos_embed" in tensors and tensors["pos_embed"].ndim == 3:
            tensors["pos_embed"] = _with_class(tensors["pos_embed"])
    return replace(found, tensors=tensors)


def fill(backbone: Backbone, found: Found, skip: Sequence[str], where: str) -> Table:
    """Give a backbone the tensors that fit.

    Args:
        backbone: what is filled; what does not fit stays as it is.
        found: the tensors, by the names of `renamed`.
        skip: texts; tensors whose names contain one are left out.
        where: the file, for messages.

    Raises:
        ConfigError: if position embeddings are of no square grid.
    """
    mine = backbone.state_dict()
    skipped = [name for name in dict.fromkeys([*mine, *found.tensors]) if any(text in name for text in skip)]
    theirs = {name: value for name, value in found.tensors.items() if name not in skipped}
    resized = []
    if isinstance(backbone, ViT) and "pos_embed" in theirs and theirs["pos_embed"].ndim == 3:
        side = side_of(theirs["pos_embed"], where)
        if (side, side) != backbone.native_grid:
            theirs["pos_embed"] = _resized(theirs["pos_embed"], (side, side), backbone.native_grid)
            resized = [f"pos_embed from {side}x{side} to {'x'.join(map(str, backbone.native_grid))} patches"]
    fits = {name: value for name, value in theirs.items() if name in mine and mine[name].shape == value.shape}
    backbone.load_state_dict(fits, strict=False)
    unexpected = [name for name in theirs if name not in mine]
    trunk = {name.partition(".")[0] for name in mine}
    return Table(
        loaded=list(fits),
        missing=[name for name in mine if name not in found.tensors and name not in skipped and not _is_counter(name)],
        unexpected=unexpected,
        extra=[name for name in unexpected if name.partition(".")[0] in trunk or name.startswith(_OTHERS)],
        mismatched=[
            f"{name} is {list(value.shape)} there and {list(mine[name].shape)} here"
            for name, value in theirs.items()
            if name in mine and name not in fits
        ],
        skipped=skipped,
        resized=resized,
        num_outside=found.num_outside,
        num_wanted=len(mine),
    )


def check_filled(table: Table, where: str, given: Mapping[str, object], seen: Mapping[str, object]) -> None:
    """Refuse a backbone that is not filled whole.

    Args:
        table: what became of its tensors.
        where: the file.
        given: settings of the backbone that the user gave.
        seen: the same as they are seen in the tensors.

    Raises:
        ConfigError: with the first few tensors and what would help.
    """
    if not (problems := table.problems):
        return
    wrong = [f"backbone.{key}={value}" for key, value in given.items() if key in seen and seen[key] != value]
    if wrong:
        right = " ".join(f"backbone.{key}={seen[key]}" for key, value in given.items() if seen.get(key, value) != value)
        advice = f"{' '.join(wrong)} is not what the tensors are of, which is {right}: leave that setting out"
    else:
        advice = "give another file, or its other layout, key or prefix"
    more = f", and {len(problems) - FIRST} more such tensors" if len(problems) > FIRST else ""
    raise ConfigError(
        f"{where} does not fill the backbone: {'; '.join(problems[:FIRST])}{more}; {advice}. strict=False, on the "
        "command line --no-strict, takes what fits and leaves the rest at its seed"
    )


def _own_name(name: str) -> str:
    """raysl's name of a ViT's tensor; BEiT's and iBOT's factors of layer scale lie in the block itself."""
    return _RENAMED.get(name) or re.sub(r"\.gamma_([12])$", r".ls\1.gamma", name)


def _with_class(places: Tensor) -> Tensor:
    """Positions with one for the class token: none where the token has it already, as in timm's DINOv2."""
    side = round((places.shape[1]) ** 0.5)
    return torch.cat([torch.zeros_like(places[:, :1]), places], dim=1) if side**2 == places.shape[1] else places


def _resized(places: Tensor, old: tuple[int, int], new: tuple[int, int]) -> Tensor:
    return torch.cat([places[:, :1], resize_positions(places[:, 1:], old, new)], dim=1)


def _is_counter(name: str) -> bool:
    """Whether a tensor counts batches, which features do not depend on and old files lack."""
    return name.endswith("num_batches_tracked")


def _first(names: Sequence[str]) -> str:
    more = f", and {len(names) - FIRST} more" if len(names) > FIRST else ""
    return f"{', '.join(names[:FIRST])}{more}"
