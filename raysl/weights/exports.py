"""Export: a backbone in the formats of other libraries."""

import importlib.util
import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram

from raysl.errors import ConfigError
from raysl.nn.backbones.backbone import Backbone
from raysl.nn.backbones.resnet import ResNet
from raysl.nn.backbones.timm_models import TimmModel
from raysl.nn.backbones.torchvision_models import TorchvisionModel
from raysl.nn.backbones.vit import ViT
from raysl.weights.described import card_of, needs_trust, to_bytes
from raysl.weights.fill import Loaded

Tensors = dict[str, Tensor]
_LARGEST_PROTO = 2**31
_WEIGHTS, _CARD = FOLDER_FILES = ("model.safetensors", "README.md")
"""Files of an export to a folder."""


@dataclass(frozen=True)
class Written:
    """An exported backbone.

    Args:
        content: bytes of the file, or of each file of a folder by name.
        usage: a line of Python that reads it, with PATH for its address.
    """

    content: bytes | dict[str, bytes]
    usage: str


def to_torchvision(loaded: Loaded) -> Written:
    """Write the state dict of a network of torchvision, without its classifier."""
    if isinstance(loaded.backbone, TorchvisionModel):
        return _back(loaded.backbone, "torchvision.models.get_model", ", strict=False")
    net = _usual_resnet(loaded.backbone, "torchvision")
    usage = f"torchvision.models.{_usual_name(net, 'torchvision')}().load_state_dict(torch.load(PATH), strict=False)"
    return Written(_saved(_tensors(net)), usage)


def to_timm(loaded: Loaded) -> Written:
    """Write the state dict of a network of timm, without its classifier."""
    net = loaded.backbone
    if isinstance(net, TimmModel):
        return _back(net, "timm.create_model")
    if not isinstance(net, ViT):
        net = _usual_resnet(net, "timm")
        call = f"timm.create_model('{_usual_name(net, 'timm')}', num_classes=0)"
        return Written(_saved(_tensors(net)), f"{call}.load_state_dict(torch.load(PATH))")
    if net.config.output in ("class_mean", "classes"):
        raise ConfigError(
            f"timm's ViT has no backbone.output={net.config.output}; give backbone.output=class or "
            "backbone.output=mean, whose weights are the same"
        )
    _check_attention(net, "timm's ViT")
    tensors = _tensors(net)
    tensors.pop("mask_token", None)
    if "reg_token" in tensors:  # with registers, timm adds the class token's position to the token itself
        positions = tensors.pop("pos_embed")
        tensors |= {"cls_token": tensors["cls_token"] + positions[:, :1], "pos_embed": positions[:, 1:].contiguous()}
    return Written(_saved(tensors), f"{_timm_call(net)}.load_state_dict(torch.load(PATH))")


def _check_attention(net: ViT, library: str) -> None:
    """Refuse a ViT whose attention is another than that of ViTs with position embeddings."""
    config = net.config
    if net.pos_embed is None:
        raise ConfigError(f"{library} has no backbone.position={config.position}; {_ELSE}")
    for name, is_set in {"causal": config.causal, "qk_norm": config.qk_norm}.items():
        if is_set:
            raise ConfigError(f"{library} has no backbone.{name}=true; {_ELSE}")


def _back(net: TimmModel | TorchvisionModel, create: str, more: str = "") -> Written:
    """Write the tensors of a wrapped network by the names of its own library."""
    tensors = {name.removeprefix("network."): value for name, value in _tensors(net).items()}
    options = "".join(f", {name}={value!r}" for name, value in net.library_options().items())
    return Written(_saved(tensors), f"{create}({net.config.model!r}{options}).load_state_dict(torch.load(PATH){more})")


def _timm_call(net: ViT) -> str:
    config = net.config
    options = {
        **({} if net.in_channels == 3 else {"in_chans": net.in_channels}),
        "img_size": config.image_size,
        "patch_size": config.patch_size,
        "embed_dim": net.token_dim,
        "depth": len(net.blocks),
        "num_heads": net.num_heads,
        "num_classes": 0,
    }
    if not config.qkv_bias:
        options["qkv_bias"] = False
    if config.mlp == "swiglu":
        num_inner = net.get_parameter("blocks.0.mlp.fc1.weight").shape[0]
        ratio = f"{num_inner}.5 / {net.token_dim}"  # timm rounds down
        options |= {"mlp_layer": "timm.layers.SwiGLUPacked", "act_layer": "torch.nn.SiLU", "mlp_ratio": ratio}
    if config.layer_scale is not None:
        options["init_values"] = config.layer_scale
    if config.num_registers:
        options |= {"reg_tokens": config.num_registers, "no_embed_class": True}
    arguments = ", ".join(f"{name}={value}" for name, value in options.items())
    pool = ", global_pool='avg', fc_norm=False" if config.output == "mean" else ""
    return f"timm.models.vision_transformer.VisionTransformer({arguments}{pool})"


def to_detectron2(loaded: Loaded) -> Written:
    """Write a pickle of arrays with Detectron2's names of a ResNet (stem, res2 to res5, shortcut, norm)."""
    net = _usual_resnet(loaded.backbone, "Detectron2", (50, 101, 152, 18, 34))
    arrays = {detectron2_name(name): t.numpy() for name, t in _tensors(net).items() if "num_batches" not in name}
    content = pickle.dumps({"model": arrays, "__author__": "raysl", "matching_heuristics": True})
    # Detectron2's defaults stride in the first 1x1 convolution and take BGR, unlike the ResNets here
    lines = ["cfg.MODEL.WEIGHTS = PATH", "cfg.MODEL.RESNETS.STRIDE_IN_1X1 = False", "cfg.INPUT.FORMAT = 'RGB'"]
    groups, width = net.config.groups, net.config.width_per_group
    if (groups, width) != (1, 64):
        lines += [f"cfg.MODEL.RESNETS.NUM_GROUPS = {groups}", f"cfg.MODEL.RESNETS.WIDTH_PER_GROUP = {width}"]
    return Written(content, "; ".join(lines))


def detectron2_name(name: str) -> str:
    """Return Detectron2's name of a tensor of torchvision's ResNet.

    >>> detectron2_name("layer1.0.bn2.weight")
    'res2.0.conv2.norm.weight'
    """
    *where, module, kind = name.split(".")
    if where and where[-1] == "downsample":
        where, module = where[:-1], "shortcut" if module == "0" else "shortcut.norm"
    elif module.startswith("bn"):
        module = f"conv{module.removeprefix('bn')}.norm"
    stage = [f"res{int(where[0].removeprefix('layer')) + 1}", *where[1:]] if where else ["stem"]
    return ".".join([*stage, module, kind])


def to_vissl(loaded: Loaded) -> Written:
    """Write the trunk as VISSL stores it.

    Raises:
        ConfigError: if the backbone is neither a ResNet nor a ViT without registers.
    """
    net = loaded.backbone
    if not isinstance(net, ResNet | ViT):
        raise ConfigError(f"VISSL has no {type(net).__name__}; only ResNets and ViTs can be written for it")
    if isinstance(net, ViT) and net.config.num_registers:
        raise ConfigError(
            f"VISSL has no ViT with registers, and this has backbone.num_registers={net.config.num_registers}; "
            f"timm has one, and {_ELSE}"
        )
    if isinstance(net, ViT):
        _check_attention(net, "VISSL's ViT")
    prefix = "_feature_blocks." if isinstance(net, ResNet) else ""
    trunk = {f"{prefix}{name}": value for name, value in _tensors(net).items() if name != "mask_token"}
    model = {"base_model": {"model": {"trunk": trunk, "heads": {}}}}
    usage = "config.MODEL.WEIGHTS_INIT.PARAMS_FILE=PATH config.MODEL.WEIGHTS_INIT.STATE_DICT_KEY_NAME=classy_state_dict"
    return Written(_saved({"classy_state_dict": model}), usage)


def to_safetensors_folder(loaded: Loaded) -> Written:
    """Write `model.safetensors` with the backbone's own names, and `README.md`, a model card for the Hub.

    The metadata of the former has the settings of the backbone and of its images.
    """
    content = to_bytes(_tensors(loaded.backbone), loaded.config)
    trust = ", rules=raysl.weights.layouts.Rules(trust_code=True)" if needs_trust(loaded.config) else ""
    return Written(
        {_WEIGHTS: content, _CARD: card_of(loaded, content, trust).encode()},
        f"raysl.convert('PATH/model.safetensors', 'runs/again'{trust})",
    )


def to_program(loaded: Loaded) -> Written:
    """Write a program of `torch.export`, from images of `data.image_size` in batches of any size to features."""
    buffer = io.BytesIO()
    torch.export.save(_exported(loaded), buffer)
    return Written(buffer.getvalue(), "torch.export.load(PATH).module()(images)")


def to_onnx(loaded: Loaded) -> Written:
    """Write an ONNX model with the input `images`, as `to_program` takes them, and the output `features`.

    Raises:
        ConfigError: if packages of torch's exporter are missing, or the weights are too large for one file.
    """
    if missing := [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]:
        raise ConfigError(f"to=onnx needs {' and '.join(missing)}, not installed here: pip install {' '.join(missing)}")
    program = torch.onnx.export(
        _exported(loaded), dynamo=True, input_names=["images"], output_names=["features"], verbose=False
    )
    assert program is not None
    proto = program.model_proto
    if proto.ByteSize() >= _LARGEST_PROTO:
        raise ConfigError(
            f"to=onnx writes one file of less than 2 GiB, and this has {proto.ByteSize():,} bytes; {_ELSE}"
        )
    usage = "onnxruntime.InferenceSession(PATH).run(['features'], {'images': images.numpy()})"
    return Written(proto.SerializeToString(), usage)


EXPORTS: dict[str, Callable[[Loaded], Written]] = {
    "torchvision": to_torchvision,
    "timm": to_timm,
    "detectron2": to_detectron2,
    "vissl": to_vissl,
    "safetensors": to_safetensors_folder,
    "export": to_program,
    "onnx": to_onnx,
}
"""By the value of `--to`."""


def _exported(loaded: Loaded) -> ExportedProgram:
    side = loaded.config.data.image_size
    # two images, as torch.export takes the length 1 of an example for a constant
    example = torch.zeros(2, loaded.backbone.in_channels, side, side)
    batch = ({0: Dim("batch", min=1)},)
    return torch.export.export(loaded.backbone.eval(), (example,), dynamic_shapes=batch, strict=True)


def _usual_resnet(net: Backbone, library: str, depths: tuple[int, ...] = (18, 34, 50, 101, 152)) -> ResNet:
    """Return the backbone if it is a ResNet that every library has."""
    if not isinstance(net, ResNet):
        raise ConfigError(f"{library} takes a ResNet here, not a {type(net).__name__}; {_ELSE}")
    config = net.config
    usual = {
        "in_channels": (3,),
        "num_stages": (4,),
        "width": (64,),
        "stem": ("imagenet",),
        "depth": depths,
        "norm": ("batch",),
        "last_stride": (2,),
        "sk_ratio": (None,),
    }
    for name, values in usual.items():
        if (value := getattr(config, name)) not in values:
            raise ConfigError(
                f"{library} has no ResNet of backbone.{name}={value}, but of {', '.join(map(str, values))}; {_ELSE}"
            )
    return net


def _usual_name(net: ResNet, library: str) -> str:
    """Return the name of a ResNet in torchvision and timm."""
    config = net.config
    shape = (config.depth, config.groups, config.width_per_group)
    if shape[1:] == (1, 64):
        return f"resnet{config.depth}"
    if shape not in _NAMES:
        raise ConfigError(
            f"{library} has no ResNet-{config.depth} of backbone.groups={config.groups} and backbone.width_per_group="
            f"{config.width_per_group}, but {', '.join(_NAMES.values())}; {_ELSE}"
        )
    return _NAMES[shape]


_NAMES = {
    (50, 1, 128): "wide_resnet50_2",
    (101, 1, 128): "wide_resnet101_2",
    (50, 32, 4): "resnext50_32x4d",
    (101, 32, 8): "resnext101_32x8d",
    (101, 64, 4): "resnext101_64x4d",
}
"""By depth, number of groups and channels of a group."""
_ELSE = "safetensors and export take any backbone"


def _tensors(net: Backbone) -> Tensors:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in net.state_dict().items()}


def _saved(content: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()
