"""Our value of every fact of a recipe, by name.

| name | what |
|---|---|
| `epochs`, `batch` | length of the run, images of a global batch |
| `optimizer` | its name; its own settings are `optim.momentum`, `optim.nesterov`, `optim.betas` and so on |
| `warmup_epochs` | length of the warm-up |
| `lr`, `weight_decay` | at the start, the end of the warm-up, a quarter, a half and the end of the run |
| `decay_of` | kinds of parameters that decay: weights, biases, norms, tokens, positions, scales |
| `scaled_of` | of LARS, LAMB and LARC, the kinds whose updates are scaled |
| `constant_lr_of` | parts whose learning rate has no schedule |
| `clip` | largest norm of the gradient of all weights |
| `ema` | share of the teacher that an update keeps, at the five points |
| `teacher_temperature` | at the five points, where it has a course |
| `batch_norm` | sync, over the images of all workers, or local, over those of one; none |
| `views_through_norm.PART` | views of an image that pass the batch normalisation of a part together, for each pass |
| `layers.PART` | a head's layers: 2048 is a linear layer without a bias; BN 1e-06 adds 1e-6 to the variance, BN 1e-5 |
| `init.conv`, `init.conv_bias`, `init.linear`, `init.linear_bias` of the backbone | see `initial.py` |
| `init.patch_embed`, `init.qkv`, `init.qkv_each` (queries, keys and values by themselves), `init.TOKEN` | of a ViT |
| `init.last_gamma` | scale of the last batch normalisation of each residual block |
| `init.layer_scale` | factors of a ViT's branches |
| `init.PART`, `init.PART_bias` | of the linear layers and convolutions of a head |
| `init.PART_transposed`, `init.PART_transposed_bias` | of the transposed convolutions of a head |
| `drop_path` | of the first, the middle and the last block |
| `dropout` | of single values in the backbone, attention's too |
| `queue` | rows |
| `views.GROUP.num`, `.size`, `.scale`, `.ratio`, `.interpolation`, `.order` | crops of a group; what follows them |
| `views.GROUP.flip`, `.grayscale` | probabilities |
| `views.GROUP.jitter` | probability, brightness, contrast, saturation, hue |
| `views.GROUP.blur` | probability, smallest and largest sigma; `.blur_kernel` its side |
| `views.GROUP.solarize` | probability, threshold |
| `views.GROUP.NAME` | settings of any other transform, crop (`crop`), cut (`tiles`) or mask (`mask`) |
| `method.*`, `backbone.*`, `optim.*`, `train.*`, `data.*` | any setting of the recipe |

Where the views of a group differ, their facts are lists with a value for each view.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, is_dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from raysl.config.dump import leaves, plain, to_dict
from raysl.methods.method import Method
from raysl.nn.backbones.attention import Attention, LayerScale
from raysl.nn.backbones.blocks import BasicBlock, Bottleneck
from raysl.nn.backbones.vit import PatchEmbed
from raysl.nn.drop_path import DropPath
from raysl.nn.ema import Teacher
from raysl.nn.queue import Queue
from raysl.optim.build import set_schedules
from raysl.optim.course import lr_at, weight_decay_at
from raysl.schedule import linear_over
from raysl.transforms.crop import RandomResizedCrop
from raysl.transforms.geometric import HorizontalFlip
from raysl.transforms.photometric import ColorJitter, GaussianBlur, Grayscale, Solarize
from raysl.transforms.view import View
from tests.published.initial import drawn, fans_of
from tests.published.recipe import Recipe

REQUIRED = ("epochs", "batch", "optimizer", "warmup_epochs", "lr", "weight_decay")
"""Facts that every file states."""
KINDS = ("weights", "biases", "norms", "tokens", "positions", "scales")


def measured(recipe: Recipe) -> dict[str, Any]:
    """Our values by the names of the facts."""
    parts: list[Callable[[Recipe], dict[str, Any]]]
    parts = [_settings, _course, _groups, _layers, _initial, _views, _step]
    return {name: value for part in parts for name, value in part(recipe).items()}


def _settings(recipe: Recipe) -> dict[str, Any]:
    nodes = ("method", "backbone", "optim", "train", "data")
    return {".".join(keys): value for keys, value in leaves(to_dict(recipe.config)) if keys[0] in nodes}


def _course(recipe: Recipe) -> dict[str, Any]:
    plan, points = recipe.plan, recipe.points
    facts = {
        "epochs": plan.total_steps / plan.epoch_len,
        "batch": plan.batch_size,
        "optimizer": plan.optim.name,
        "warmup_epochs": recipe.num_warmup / plan.epoch_len,
        "lr": [lr_at(plan.optim, point, plan.batch_size) for point in points],
        "weight_decay": [weight_decay_at(plan.optim, point) for point in points],
        "clip": plan.clip_grad,
    }
    method: Any = recipe.config.method
    if hasattr(method, "teacher_temp_warmup"):
        course = (method.teacher_temp_warmup, method.teacher_temp_start, method.teacher_temp)
        facts["teacher_temperature"] = [linear_over(point, *course) for point in points]
    return facts


def _groups(recipe: Recipe) -> dict[str, Any]:
    method, optimizer, optim = recipe.method, recipe.state.optimizer, recipe.plan.optim
    set_schedules(optimizer, optim, recipe.points[1], recipe.plan.batch_size)
    found = {id(parameter): group for group in optimizer.param_groups for parameter in group["params"]}
    named = [(name, kind, found[id(p)]) for name, kind, p in _kinds(recipe) if id(p) in found]
    facts = {"decay_of": _kinds_where(named, lambda group: group["weight_decay"] > 0)}
    if optim.name in ("lars", "lamb", "larc"):
        facts["scaled_of"] = _kinds_where(named, lambda group: group["layer_scaling"])
    constant = {name.partition(".")[0] for name, _, group in named if group["is_lr_constant"]}
    facts["constant_lr_of"] = [part for part, _ in method.named_children() if part in constant]
    return facts


def _kinds(recipe: Recipe) -> Iterator[tuple[str, str, nn.Parameter]]:
    """Name, kind and parameter of all that is trained."""
    backbone = recipe.method.backbone
    without_decay = backbone.no_decay()
    apart = {id(p) for name, p in backbone.named_parameters() if name in without_decay}
    for prefix, module in recipe.method.named_modules():
        is_norm = isinstance(module, _BatchNorm | nn.LayerNorm | nn.GroupNorm)
        for name, parameter in module.named_parameters(recurse=False):
            if not parameter.requires_grad:
                continue
            kind = "norms" if is_norm else "biases" if name.endswith("bias") else "weights"
            if "pos" in name and id(parameter) in apart:
                kind = "positions"
            elif "token" in name:
                kind = "tokens"
            elif name in ("gamma", "scale"):
                kind = "scales"
            yield f"{prefix}.{name}", kind, parameter


def _kinds_where(named: list[tuple[str, str, dict[str, Any]]], holds: Callable[[dict[str, Any]], bool]) -> list[str]:
    listed = []
    for wanted in KINDS:
        by_part: dict[str, list[bool]] = {}
        for name, kind, group in named:
            if kind == wanted:
                by_part.setdefault(name.partition(".")[0], []).append(holds(group))
        parts = [part for part, held in by_part.items() if all(held)]
        some = [f"some {wanted} of {part}" for part, held in by_part.items() if any(held) and not all(held)]
        if by_part and len(parts) == len(by_part):
            listed.append(wanted)
        else:
            listed += [f"{wanted} of {part}" for part in parts] + some
    return listed


def _layers(recipe: Recipe) -> dict[str, Any]:
    method = recipe.method
    facts: dict[str, Any] = {}
    for part, module in _heads(method):
        facts[f"layers.{part}"] = [text for layer in module.modules() for text in _layer(layer)]
    has_norm = any(isinstance(module, _BatchNorm) for module in method.modules())
    facts["batch_norm"] = ("sync" if recipe.config.train.sync_bn else "local") if has_norm else "none"
    rates = [module.rate for module in method.backbone.modules() if isinstance(module, DropPath)]
    if rates:
        facts["drop_path"] = [rates[0], rates[len(rates) // 2], rates[-1]]
    dropouts = [module.p for module in method.backbone.modules() if isinstance(module, nn.Dropout)]
    facts["dropout"] = max(dropouts, default=0)
    queues = [len(module.keys) for module in method.modules() if isinstance(module, Queue)]
    if queues:
        facts["queue"] = queues[0]
    return facts


def _heads(method: Method) -> list[tuple[str, nn.Module]]:
    return [
        (name, child)
        for name, child in method.named_children()
        if child is not method.backbone and not isinstance(child, Teacher)
    ]


def _layer(layer: nn.Module) -> list[str]:
    if isinstance(layer, nn.Linear):
        return [f"{layer.out_features} bias" if layer.bias is not None else f"{layer.out_features}"]
    if isinstance(layer, _BatchNorm):
        affine = " plain" if layer.weight is None else "" if layer.bias is not None else " without shift"
        return [f"BN{affine}" + (f" {layer.eps:g}" if layer.eps != 1e-5 else "")]
    if isinstance(layer, nn.LayerNorm):
        return ["LN"]
    if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d):
        return [f"conv {layer.out_channels}" + (" bias" if layer.bias is not None else "")]
    return [type(layer).__name__] if type(layer).__module__.startswith("torch.nn.modules.activation") else []


def _initial(recipe: Recipe) -> dict[str, Any]:
    method, backbone = recipe.drawn, recipe.drawn.backbone
    facts: dict[str, Any] = {}
    patches = [module.proj for module in backbone.modules() if isinstance(module, PatchEmbed)]
    attention = [module.qkv for module in recipe.blocks.modules() if isinstance(module, Attention)]
    embeds = [module.proj for module in recipe.blocks.modules() if isinstance(module, PatchEmbed)]
    apart = {id(module) for module in (*embeds, *attention)}
    layers = [module for module in recipe.blocks.modules() if id(module) not in apart]
    facts |= _drawn_layers("init.patch_embed", patches)
    facts |= _drawn_layers("init.qkv", attention)
    if attention:
        each = [part for layer in attention for part in layer.weight.chunk(3)]
        facts["init.qkv_each"] = drawn(each, [fans_of(part) for part in each])
    facts |= _drawn_layers("init.conv", [layer for layer in layers if isinstance(layer, nn.Conv2d)])
    facts |= _drawn_layers("init.linear", [layer for layer in layers if isinstance(layer, nn.Linear)])
    for name, parameter in backbone.named_parameters(recurse=False):
        facts[f"init.{name}"] = drawn([parameter])
    gammas = [block.bn3 if isinstance(block, Bottleneck) else block.bn2 for block in _blocks(backbone)]
    if gammas:
        facts["init.last_gamma"] = [gamma.get_parameter("weight").detach().mean().item() for gamma in gammas]
    scales = [module.gamma.detach().mean().item() for module in backbone.modules() if isinstance(module, LayerScale)]
    if scales:
        facts["init.layer_scale"] = scales
    for part, head in _heads(method):
        linear = [layer for layer in head.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
        facts |= _drawn_layers(f"init.{part}", linear)
        transposed = [layer for layer in head.modules() if isinstance(layer, nn.ConvTranspose2d)]
        facts |= _drawn_layers(f"init.{part}_transposed", transposed)
        for name, parameter in head.named_parameters(recurse=False):
            if not isinstance(head, nn.Linear):
                facts[f"init.{part}.{name}"] = drawn([parameter])
    for name, parameter in method.named_parameters(recurse=False):
        facts[f"init.{name}"] = drawn([parameter])
    return facts


def _blocks(backbone: nn.Module) -> list[Any]:
    return [module for module in backbone.modules() if isinstance(module, BasicBlock | Bottleneck)]


def _drawn_layers(name: str, layers: list[Any]) -> dict[str, Any]:
    if not layers:
        return {}
    facts: dict[str, Any] = {name: drawn([layer.weight for layer in layers], [fans_of(one.weight) for one in layers])}
    with_bias: list[Any] = [layer for layer in layers if layer.bias is not None]
    if with_bias:
        fans = [(fans_of(layer.weight)[0],) * 2 for layer in with_bias]
        facts[f"{name}_bias"] = drawn([layer.bias for layer in with_bias], fans)
    return facts


def _views(recipe: Recipe) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for group, views in recipe.views.groups.items():
        each = [_view(view) for view in views]
        facts[f"views.{group}.num"] = len(views)
        for name in dict.fromkeys(name for one in each for name in one):
            values = [one.get(name) for one in each]
            facts[f"views.{group}.{name}"] = values[0] if all(value == values[0] for value in values) else values
    return facts


def _view(view: View) -> dict[str, Any]:
    crop, chain = view.crop, (*view.transforms, *view.tile_transforms)
    facts: dict[str, Any] = {"size": crop.size, "flip": 0, "jitter": 0, "grayscale": 0, "blur": 0, "solarize": 0}
    if isinstance(crop, RandomResizedCrop):
        facts |= {"scale": list(crop.scale), "ratio": list(crop.ratio), "interpolation": crop.interpolation}
    else:
        facts["crop"] = _fields(crop)
    facts["order"] = [type(transform).__name__ for transform in chain]
    for transform in chain:
        if isinstance(transform, HorizontalFlip):
            facts["flip"] = transform.p
        elif isinstance(transform, Grayscale):
            facts["grayscale"] = transform.p
        elif isinstance(transform, ColorJitter):
            amounts = (transform.brightness, transform.contrast, transform.saturation, transform.hue)
            facts["jitter"] = plain([transform.p, *amounts])
        elif isinstance(transform, GaussianBlur):
            facts["blur"] = [transform.p, *transform.sigma]
            facts["blur_kernel"] = transform._kernel_size((crop.size, crop.size))
        elif isinstance(transform, Solarize):
            facts["solarize"] = plain([transform.p, transform.threshold])
        else:
            facts[type(transform).__name__] = _fields(transform)
    for name, part in (("tiles", view.tiles), ("mask", view.mask)):
        if part is not None:
            facts[name] = _fields(part)
    return facts


def _fields(part: Any) -> Any:
    assert is_dataclass(part)
    assert not isinstance(part, type)
    fields = {key: value.tolist() if isinstance(value, Tensor) else value for key, value in asdict(part).items()}
    return plain({"kind": type(part).__name__, **fields})


def _step(recipe: Recipe) -> dict[str, Any]:
    step = recipe.step
    facts: dict[str, Any] = {f"views_through_norm.{part}": calls for part, calls in step.views_through_norm.items()}
    return facts | ({"ema": step.momenta} if step.momenta else {})
