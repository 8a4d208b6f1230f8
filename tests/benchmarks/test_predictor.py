"""Images to features, neighbours and probabilities by a checkpoint, as its benchmarks see them."""

import io
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import raysl
from raysl import cli
from raysl.benchmarks.benchmark import FeatureSet
from raysl.benchmarks.features.stored_features import read_features
from raysl.benchmarks.knn import KNN, knn_predict, knn_probabilities
from raysl.checkpoint.backbone import load_backbone
from raysl.config.load import load_config
from raysl.errors import ConfigError
from raysl.plan.setup import Setup
from raysl.predictor import _Searched
from raysl.schedule import Duration, Step
from raysl.train.state import TrainState
from raysl.transforms import normalize
from raysl.transforms.view_recipe import evaluation_recipe

SMALL = ("backbone.num_stages=1", "backbone.width=4", "data.image_size=12", "data.eval_resize=16", "train.batch_size=6")
SIMCLR = ("method.hidden_dim=8", "method.output_dim=4")
CLASSES = ("ants", "bees", "cats")


def picture(number: int) -> np.ndarray:
    """An image [H, W, 3] of a size of its own."""
    random = np.random.default_rng(number)
    tint = random.integers(0, 156, 3)
    return (tint + random.integers(0, 100, (14 + number % 4, 20 - number % 3, 3))).astype(np.uint8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve images of three classes, and a run on them whose weights are like no fresh ones."""
    root = tmp_path_factory.mktemp("predictor")
    for number in range(12):
        path = root / "images" / CLASSES[number % 3] / f"{number:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture(number)).save(path)
    save(root / "run", *SIMCLR)
    return root


def save(run: Path, *words: str) -> TrainState:
    """A checkpoint with random weights and running statistics."""
    images = ["data=image_folder", f"data.path={run.parent}/images"]
    config = load_config("quickstart", [*images, *SMALL, "benchmarks=[]", *words])
    state = TrainState.create(Setup.of(config, 12, 3))
    generator = torch.Generator().manual_seed(5)
    for name, value in state.method.state_dict().items():
        if value.is_floating_point():
            drawn = torch.randn(value.shape, generator=generator)
            value.copy_(drawn.abs() + 0.5 if name.endswith("var") else 0.3 * drawn)
    state.save(run / "checkpoint_000000000", {})
    return state


@pytest.fixture(scope="module")
def predictor(folder: Path) -> "raysl.Predictor":
    return raysl.Predictor(folder / "run", device="cpu", batch_size=5)


def paths(folder: Path) -> list[Path]:
    return sorted((folder / "images").rglob("*.png"))


def expected(folder: Path, images: list[np.ndarray]) -> Tensor:
    """Features by the parts that evaluation is made of."""
    with torch.no_grad():
        return load_backbone(str(folder / "run"))(seen(images))


def seen(images: list[np.ndarray]) -> Tensor:
    """Cut and normalised with the numbers of ImageNet, which are the default."""
    tensors = [torch.from_numpy(image).permute(2, 0, 1) for image in images]
    views = evaluation_recipe(12, 16)(tensors, np.arange(len(tensors)), 0, 0)["image"][:, 0]
    return normalize(views, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def test_features_are_those_that_extract_gives(folder: Path, predictor: Any, shared_ray: None) -> None:
    found = raysl.extract(str(folder / "run"), split="train")
    assert torch.allclose(predictor(paths(folder)), found.features, rtol=1e-5, atol=1e-6)
    assert found.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    read = read_features(found.path)
    assert torch.equal(read.features, found.features)
    assert torch.equal(read.labels, found.labels)
    near = predictor.neighbours(paths(folder)[3], among=found.path, k=2)
    assert near.index[0, 0] == 3
    assert near.labels[0, 0] == 0
    assert near.names[0][0].endswith("images/ants/09.png")
    assert near.classes[0][0] == "ants"
    assert predictor.class_names(found) == predictor.class_names(found.path) == CLASSES


@pytest.mark.thorough
def test_an_image_may_be_given_in_many_ways_and_sizes(folder: Path, predictor: Any) -> None:
    array = picture(4)
    file = io.BytesIO()
    Image.fromarray(array).save(file, "PNG")
    path = folder / "images" / "bees" / "04.png"
    ways = [
        array, torch.from_numpy(array).permute(2, 0, 1), Image.fromarray(array), file.getvalue(), path, str(path),
        path.as_uri(), picture(7),
    ]  # fmt: skip
    found = predictor(ways)
    assert found.shape == (8, 4)
    wanted = expected(folder, [array, picture(7)])
    assert torch.allclose(found[:7], wanted[:1].expand(7, -1), rtol=1e-5, atol=1e-6)
    assert torch.allclose(found[7], wanted[1], rtol=1e-5, atol=1e-6)
    assert not torch.allclose(found[7], found[0], rtol=1e-3)
    for way in ways[:7]:
        assert torch.allclose(predictor(way), wanted[:1], rtol=1e-5, atol=1e-6)


@pytest.mark.thorough
def test_a_batch_may_be_one_tensor_and_batches_change_nothing(folder: Path, predictor: Any) -> None:
    images = np.stack([picture(number)[:14, :18] for number in range(7)])
    wanted = expected(folder, list(images))
    assert torch.allclose(predictor(images), wanted, rtol=1e-5, atol=1e-6)
    assert torch.allclose(predictor(torch.from_numpy(images).permute(0, 3, 1, 2)), wanted, rtol=1e-5, atol=1e-6)
    alone = raysl.Predictor(folder / "run", device=torch.device("cpu"), batch_size=1)
    assert torch.allclose(alone(images), wanted, rtol=1e-5, atol=1e-6)


def test_neighbours_are_the_nearest_by_cosine(folder: Path, predictor: Any) -> None:
    queries = [picture(20), picture(5)]
    near = predictor.neighbours(queries, among=folder / "images", k=3)
    bank, asked = predictor(paths(folder)), predictor(queries)
    cosines = torch.nn.functional.cosine_similarity(asked[:, None], bank[None], dim=2)
    best = cosines.argsort(dim=1, descending=True)[:, :3]
    assert torch.equal(near.index, best)
    assert torch.allclose(near.cosine, cosines.gather(1, best), atol=1e-6)
    assert near.index[1, 0].item() == paths(folder).index(folder / "images" / "cats" / "05.png")
    assert near.names[1][0].endswith("images/cats/05.png")
    assert near.labels[1, 0].item() == 2
    assert near.classes == [[Path(name).parent.name for name in row] for row in near.names]
    assert predictor.neighbours(queries, among=folder / "images", k=99).index.shape == (2, 12)


def test_probabilities_have_the_names_of_their_classes(folder: Path, predictor: Any) -> None:
    for among in (None, folder / "images"):
        assert predictor.class_names(among) == CLASSES
    shares = predictor.probabilities(picture(5), among=folder / "images", k=1)
    assert predictor.class_names(folder / "images")[int(shares.argmax())] == "cats"
    assert predictor.class_names(bank()) == ()


def test_several_and_missing_labels_are_named_in_words(predictor: Any, folder: Path) -> None:
    features = predictor(paths(folder)[:3])
    labels = torch.tensor([[1, 0, 1], [0, 0, 0], [0, 1, 0]])
    predictor._folders["/several"] = _Searched(FeatureSet(features, labels), (), CLASSES)
    predictor._folders["/some"] = _Searched(FeatureSet(features, torch.tensor([2, -1, 0])), (), CLASSES)
    assert [predictor.neighbours(path, "/several", 1).classes[0][0] for path in paths(folder)[:3]] == [
        "ants, cats", "", "bees",
    ]  # fmt: skip
    assert [predictor.neighbours(path, "/some", 1).classes[0][0] for path in paths(folder)[:3]] == ["cats", "", "ants"]


def command(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["raysl", "neighbours", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


@pytest.mark.thorough
def test_a_command_prints_the_neighbours_of_pictures(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], predictor: Any
) -> None:
    images, run = str(folder / "images"), str(folder / "run")
    first, second = (str(path) for path in paths(folder)[:2])
    assert command(monkeypatch, run, first, "--among", images, "-k", "2") == 0
    lines = capsys.readouterr().out.splitlines()
    near = predictor.neighbours(first, among=images, k=2)
    assert [line.split() for line in lines] == [
        [f"{near.cosine[0, number]:.4f}", near.classes[0][number], near.names[0][number]] for number in range(2)
    ]
    assert lines[0].split() == ["1.0000", "ants", near.names[0][0]]
    assert command(monkeypatch, run, first, second, "--among", images, "-k", "1") == 0
    assert capsys.readouterr().out.splitlines()[::2] == [first, second]
    assert command(monkeypatch, run, "gone.png", "--among", images) == 2
    assert "gone.png" in capsys.readouterr().err


def test_the_command_searches_the_training_images_of_the_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], shared_ray: None
) -> None:
    assert command(monkeypatch, str(folder / "run"), str(paths(folder)[0]), "-k", "1") == 0
    assert capsys.readouterr().out.splitlines()[-1].split()[1] == "ants"


def test_broken_images_of_a_folder_are_left_out_with_a_warning(
    folder: Path, predictor: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    images = shutil.copytree(folder / "images", tmp_path / "images")
    (images / "ants" / "01.png").write_bytes(b"no image")
    near = predictor.neighbours([picture(20)], among=images, k=99)
    assert "1 image is broken and left out; the first: " in caplog.text
    assert "ants/01.png" in caplog.text
    whole = predictor.neighbours([picture(20)], among=folder / "images", k=99)
    assert torch.equal(near.cosine, whole.cosine)
    assert torch.equal(near.labels, whole.labels)
    assert [Path(name).name for name in near.names[0]] == [Path(name).name for name in whole.names[0]]
    shares = predictor.probabilities([picture(20)], among=images)
    assert torch.equal(shares, predictor.probabilities([picture(20)], among=folder / "images"))


def test_a_folder_is_gone_through_once(folder: Path, predictor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first = predictor.neighbours(picture(1), among=str(folder / "images"))
    monkeypatch.setattr("raysl.predictor.resolve", None)  # which would read the folder
    monkeypatch.chdir(folder)  # one folder by either name
    again = predictor.neighbours(picture(1), among="images")
    assert torch.equal(again.index, first.index)
    assert torch.equal(again.cosine, first.cosine)


def bank() -> FeatureSet:
    generator = torch.Generator().manual_seed(1)
    return FeatureSet(torch.randn(30, 4, generator=generator), torch.arange(30) % 3)


def test_probabilities_are_shares_of_the_vote(predictor: Any) -> None:
    found = predictor.probabilities([picture(1), picture(2)], among=bank(), k=5, temperature=0.5)
    assert found.shape == (2, 3)
    queries = torch.nn.functional.normalize(predictor([picture(1), picture(2)]), dim=1)
    keys = torch.nn.functional.normalize(bank().features, dim=1)
    for row, query in enumerate(queries):
        cosines = keys @ query
        voters = cosines.argsort(descending=True)[:5].tolist()
        votes = [sum(np.exp(cosines[v].item() / 0.5) for v in voters if v % 3 == label) for label in range(3)]
        assert found[row].tolist() == pytest.approx([vote / sum(votes) for vote in votes], abs=1e-5)


def test_the_likeliest_class_is_that_of_the_benchmark() -> None:
    queries = torch.randn(50, 4, generator=torch.Generator().manual_seed(2))
    shares = knn_probabilities(bank(), queries, 3, k=7, chunk_rows=16)
    assert torch.allclose(shares.sum(dim=1), torch.ones(50))
    assert torch.equal(shares.argmax(dim=1), knn_predict(bank(), queries, 3, (7,))[7][:, 0])
    assert KNN.Config().temperature == 0.07


@pytest.mark.parametrize("words", [(), ("train.ema=0.5",), ("train.ema=0.5", "train.ema_export=true")])
def test_a_supervised_checkpoint_gives_the_probabilities_of_its_classifier(
    folder: Path, words: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "images").symlink_to(folder / "images")
    state = save(tmp_path / "run", "method=supervised", *words)
    is_averaged = len(words) == 2
    if state.average is not None:
        with torch.no_grad():
            state.method.classifier.weight.add_(torch.tensor([[0.0], [0.5], [1.0]]))  # type: ignore[operator, union-attr]
        state.average.warmup = Duration(0, "st")
        state.average.update(state.method, Step(0, 10, 10))
        state.save(tmp_path / "run" / "checkpoint_000000000", {})
    found = raysl.Predictor(tmp_path / "run", device="cpu").probabilities([picture(1), picture(2)])
    if is_averaged:
        assert state.average is not None
        state.average.load_into(state.method)
    method = state.method.eval()
    with torch.no_grad():
        scores = method.class_scores(method.backbone(seen([picture(1), picture(2)])))
    assert scores is not None
    assert torch.allclose(found, scores.softmax(dim=1), rtol=1e-4, atol=1e-6)
    assert found.shape == (2, 3)


def test_every_image_that_cannot_be_used_is_named(folder: Path, predictor: Any) -> None:
    good = paths(folder)[0]
    (folder / "broken.png").write_bytes(good.read_bytes()[:60])
    with pytest.raises(ConfigError) as caught:
        predictor([good, folder / "broken.png", good, folder / "gone.png", good])
    first, *lines = str(caught.value).splitlines()
    assert first == "2 images cannot be used:"
    assert [line.split(":")[0] for line in lines] == [
        f"images[1] ({folder}/broken.png)", f"images[3] ({folder}/gone.png)"
    ]  # fmt: skip
    with pytest.raises(ConfigError, match=r"an image cannot be used: images\[6\] \(.*gone.png\)"):
        predictor([*[good] * 6, folder / "gone.png"])  # in the second batch
    with pytest.raises(ConfigError, match=r"no image can be used; .*images\[0\] \(.*gone.png\)"):
        predictor(folder / "gone.png")
    with pytest.raises(ConfigError, match=r"images\[1\] is torch.float32 \[3, 4, 4\]; give pixels from 0 to 255"):
        predictor([good, torch.rand(3, 4, 4)])
    with pytest.raises(ConfigError, match=r"images\[0\] is a int; give a uint8 tensor"):
        predictor([3])
    with pytest.raises(ConfigError, match="images: the list is empty"):
        predictor([])


@pytest.mark.parametrize(
    ("ask", "told"),
    [
        (lambda p: p.neighbours(picture(0), among=bank(), k=0), "k: 0 is not a number of neighbours; give a whole"),
        (lambda p: p.neighbours(picture(0), among=3), "among is a int; give what raysl.extract returns, its Parquet"),
        (lambda p: p.neighbours(picture(0), among=FeatureSet(torch.ones(3, 7), torch.zeros(3, dtype=torch.int64))),
         "among has features of width 7, this network's have 4; extract them with this one"),
        (lambda p: p.neighbours(picture(0), among="gone"), "gone"),
        (lambda p: p.neighbours(picture(0), among="gone.parquet"), "cannot read 'gone.parquet'"),
        (lambda p: p.probabilities(picture(0)), "method=simclr has learned no classes; give labelled images to vote"),
        (lambda p: p.probabilities(picture(0), among=bank(), temperature=0), "temperature: 0 divides cosines"),
        (lambda p: p.probabilities(picture(0), among=bank(), temperature="1"), "temperature: '1' divides"),
        (lambda p: p.probabilities(picture(0), among=FeatureSet(torch.ones(3, 4), torch.full((3,), -1))),
         "among: no image has a label, which votes for a class; give a folder with a sub-folder for each class, or"),
        (lambda p: raysl.Predictor("runs/none"), "runs/none"),
        (lambda p: raysl.Predictor(p.checkpoint.uri, batch_size=0), "batch_size: 0 is not a number of images"),
        (lambda p: raysl.Predictor(p.checkpoint.uri, device="gpu"), "device: torch does not know 'gpu'"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_is_refused(predictor: Any, ask: Any, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ask(predictor)
    assert told in str(caught.value)


def test_a_folder_without_sub_folders_cannot_vote(predictor: Any, folder: Path) -> None:
    flat = folder / "images" / CLASSES[0]
    assert len(predictor.neighbours(picture(0), among=flat).names[0]) == 4
    with pytest.raises(ConfigError, match=f"among='{flat}': no image has a label, which votes for a class; give a fol"):
        predictor.probabilities(picture(0), among=flat)


def test_a_parquet_file_of_something_else_is_refused(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"features": [1.0]}), tmp_path / "x.parquet")
    with pytest.raises(ConfigError, match="has no column 'label'; give a file that raysl extract has written"):
        read_features(str(tmp_path / "x.parquet"))


@pytest.mark.cluster
def test_a_predictor_does_not_load_ray(folder: Path) -> None:
    code = (
        "import sys, numpy, raysl\n"
        f"p = raysl.Predictor({str(folder / 'run')!r}, device='cpu')\n"
        f"p.neighbours(numpy.zeros((20, 20, 3), numpy.uint8), among={str(folder / 'images')!r})\n"
        "assert 'ray' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.thorough
def test_the_examples_of_the_page_run_as_printed(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "notebook.md").read_text()
    code, of_patches = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "Predictor(" in block]
    (tmp_path / "photos").symlink_to(folder / "images")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "mine").symlink_to(folder / "run")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(code, names)
    assert names["features"].shape == (12, 4)
    assert names["near"].names[0][0] == str(tmp_path / names["images"][0])
    assert names["shares"].shape == (2, 3)
    names = {}
    exec(of_patches, names)
    assert names["maps"].features.shape == (10, *names["maps"].grid, 4)


def test_patches_are_the_last_map_of_what_benchmarks_see(folder: Path, predictor: Any) -> None:
    images = [picture(number) for number in range(7)]
    maps = predictor.patches(images)
    backbone = load_backbone(str(folder / "run"))
    with torch.no_grad():
        stage = backbone.stages(seen(images), [maps.stage])[maps.stage]
    assert torch.allclose(maps.features, stage.permute(0, 2, 3, 1), rtol=1e-4, atol=1e-5)
    assert maps.images.shape == (7, 3, 12, 12)
    assert torch.allclose(normalize(maps.images, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)), seen(images))
    assert maps.colors().shape == (7, *maps.grid, 3)
    double = predictor.patches(images, size=24)
    assert double.grid == (2 * maps.grid[0], 2 * maps.grid[1])
    assert double.images.shape == (7, 3, 24, 24)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"stage": "res9"}, "no stage 'res9'"),
        ({"size": 0}, "size: 0 is not a side in pixels; give a whole number from 1 on"),
        ({"size": 3}, "no map with 4 x 4 places"),
    ],
)
def test_patches_that_there_are_not_are_refused(predictor: Any, words: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        predictor.patches(picture(1), **words)
    with pytest.raises(ConfigError, match=re.escape("images[1]")):
        predictor.patches([picture(1), b"no image"])
