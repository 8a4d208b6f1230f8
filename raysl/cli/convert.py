"""`raysl convert`: weights from and for other libraries; `raysl convert-config`: configurations of VISSL."""

from pathlib import Path
from typing import Annotated

import typer

from raysl.cli.arguments import Verbose, is_setting, set_up
from raysl.errors import ConfigError
from raysl.redact import redact


def run_convert(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A file of weights, or a run or checkpoint of raysl.")
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[key=value ...]",
            help="Settings of the backbone and of the images that it expects, instead of those that its tensors imply: "
            "backbone.image_size=96 or data.mean=[0.5,0.5,0.5]; or another network, backbone=timm "
            "backbone.model=convnext_tiny.",
        ),
    ] = None,
    out: Annotated[
        str | None, typer.Option(metavar="URI", help="Output: a folder for raysl and safetensors, else a file.")
    ] = None,
    to: Annotated[
        str, typer.Option(help="raysl, torchvision, timm, detectron2, vissl, safetensors, export or onnx.")
    ] = "raysl",
    layout: Annotated[
        str | None, typer.Option(metavar="NAME", help="Layout of the file, such as moco; default: recognised.")
    ] = None,
    part: Annotated[
        str | None, typer.Option(help="student or teacher, if there are both; default: the one that papers measure.")
    ] = None,
    key: Annotated[
        str | None, typer.Option(metavar="A.B", help="Keys of the dictionary with the tensors; chooses one of several.")
    ] = None,
    prefix: Annotated[str | None, typer.Option(help="Prefix of the tensors' names; chooses one of several.")] = None,
    grid: Annotated[
        str | None,
        typer.Option(metavar="HxW", help="Rows and columns of a ViT's patches, such as 14x14; asked for where needed."),
    ] = None,
    skip: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="Leave out tensors with this in their name; repeatable.")
    ] = None,
    strict: Annotated[bool, typer.Option(help="Refuse a backbone if some of its weights are missing.")] = True,
    trust_code: Annotated[
        bool, typer.Option("--trust-code", help="Run code that the file, or the checkpoint, names.")
    ] = False,
    verbose: Verbose = False,
) -> None:
    """Read weights of torchvision, timm, VISSL and official code, or write raysl's for other libraries.

    ResNets, wide ResNets, ResNeXts and ViTs are known by their tensors; name any other network of torchvision or timm:
    backbone=timm backbone.model=convnext_tiny.

    A folder written for raysl can be used like a run by `raysl benchmark`, `raysl extract` and method.weights=.
    """
    set_up(verbose)
    if out is None:
        raise ConfigError("--out is missing; give a folder, or for most other libraries a file")
    from raysl.weights.convert import convert
    from raysl.weights.layouts import Rules

    rules = Rules(layout, part, key, prefix, tuple(skip or ()), strict, trust_code, grid)
    converted = convert(source, out, arguments or [], rules, to)
    typer.echo(f"read        {redact(converted.summary)}")
    if converted.table is not None:
        typer.echo(converted.table.text())
    typer.echo(f"weights     {redact(converted.path)}")
    typer.echo(f"use         {redact(converted.usage)}")


def run_convert_config(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE [FILE ...] [config.KEY=value ...] [key=value ...]",
            help="A YAML file of VISSL, files and keys of VISSL that are laid over it, and settings of raysl that hold "
            "over the result.",
        ),
    ],
    out: Annotated[str | None, typer.Option(metavar="FILE", help="File to write; default: the screen.")] = None,
) -> None:
    """Translate a configuration of VISSL into one of raysl, and list what differs or has no counterpart.

    The lists are comments at its head. Nothing of the file is run. `raysl plan FILE` then shows what it would do.
    """
    paths = [word for word in arguments if not is_setting(word)]
    if not paths:
        raise ConfigError("no file is given; write raysl convert-config FILE.yaml, and key=value behind it")
    if out is not None and Path(out).exists():
        raise ConfigError(f"{out!r} is there already; give another name, or delete it")
    from raysl.translation.vissl import convert_config

    translation = convert_config(paths, [word for word in arguments if word not in paths])
    text = redact(translation.text())
    if out is None:
        typer.echo(text, nl=False)
        return
    try:
        Path(out).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {out!r}: {error.strerror}; give another file") from error
    typer.echo("".join(line.removeprefix("# ") for line in text.splitlines(keepends=True) if line.startswith("#")))
    typer.echo(f"config      {redact(out)}")
    typer.echo(f"use         raysl plan {redact(out)}")
