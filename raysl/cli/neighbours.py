"""`raysl neighbours`: the images that a network finds nearest to a picture."""

from typing import Annotated

import typer

from raysl.cli.arguments import TrustCode, Verbose, set_up
from raysl.redact import redact


def run_neighbours(
    checkpoint: Annotated[
        str,
        typer.Argument(metavar="URI", help="A checkpoint, or a run, whose newest one is used; or `cifar10/simclr`."),
    ],
    pictures: Annotated[list[str], typer.Argument(metavar="PICTURE ...", help="Files of pictures to compare.")],
    among: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="Folder of images to search, or of features from raysl extract; default: the run's training images.",
        ),
    ] = None,
    k: Annotated[int, typer.Option("-k", "--k", min=1, help="Neighbours of each picture.")] = 5,
    trust_code: TrustCode = False,
    verbose: Verbose = False,
) -> None:
    """Print the images nearest to a picture: cosine of the features, class and file, the nearest first.

    Features of the run's training images are computed by Ray once, and kept beside the checkpoint as by raysl extract.
    """
    set_up(verbose)
    from raysl.benchmarks.features.extract import extract
    from raysl.predictor import Predictor

    predictor = Predictor(checkpoint, trust_code=trust_code)
    searched = extract(checkpoint, split="train", trust_code=trust_code) if among is None else among
    near = predictor.neighbours(pictures, searched, k)
    for row, picture in enumerate(pictures):
        if len(pictures) > 1:
            typer.echo(redact(picture))
        classes = near.classes[row] if near.classes else [""] * len(near.cosine[row])
        files = near.names[row] if near.names else [f"image {number}" for number in near.index[row].tolist()]
        width = max(map(len, classes))
        for cosine, name, file in zip(near.cosine[row].tolist(), classes, files, strict=True):
            typer.echo(redact("  ".join([f"{cosine:.4f}", *([f"{name:<{width}}"] if width else []), file])))
