import bz2
import json
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torchvision.datasets

from raysl.data.decode.decode import decode
from raysl.data.source import Missing
from raysl.data.sources.subset import Subset
from raysl.data.sources.torchvision_dataset import LAYOUTS, TorchvisionDataset
from raysl.data.sources.torchvision_special import CLEVR_DISTANCES, WHOLE
from raysl.errors import ConfigError
from tests.data.samples import all_rows, png, sent

RNG = np.random.default_rng(0)


def pixels(*shape: int) -> np.ndarray:
    return RNG.integers(0, 256, shape, dtype=np.uint8)


def put(path: Path, content: bytes | str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def cifar(root: Path, folder: str, names: list[str], meta: tuple[str, str], label: str) -> None:
    for number, name in enumerate(names):
        batch = {"data": pixels(2, 3072), label: [number % 3, 2]}
        put(root / folder / name, pickle.dumps(batch))
    put(root / folder / meta[0], pickle.dumps({meta[1]: ["a", "b", "c"]}))


def cifar10(root: Path) -> None:
    names = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    cifar(root, "cifar-10-batches-py", names, ("batches.meta", "label_names"), "labels")


def cifar100(root: Path) -> None:
    cifar(root, "cifar-100-python", ["train", "test"], ("meta", "fine_label_names"), "fine_labels")


def mnist(root: Path, name: str) -> None:
    for part, rows in (("train", 3), ("t10k", 2)):
        images = struct.pack(">HBBIII", 0, 8, 3, rows, 28, 28) + pixels(rows, 28, 28).tobytes()
        put(root / name / "raw" / f"{part}-images-idx3-ubyte", images)
        put(root / name / "raw" / f"{part}-labels-idx1-ubyte", struct.pack(">HBBI", 0, 8, 1, rows) + bytes(range(rows)))


def stl10(root: Path) -> None:
    for part, rows in (("train", 2), ("test", 3), ("unlabeled", 4)):
        put(root / "stl10_binary" / f"{part}_X.bin", pixels(rows, 3, 96, 96).tobytes())
        if part != "unlabeled":
            put(root / "stl10_binary" / f"{part}_y.bin", bytes(range(1, rows + 1)))
    put(root / "stl10_binary" / "class_names.txt", "airplane\nbird\ncar\n")


def svhn(root: Path) -> None:
    from scipy.io import savemat

    for part, labels in (("train", [[10], [1]]), ("test", [[3], [2]])):
        savemat(root / f"{part}_32x32.mat", {"X": pixels(32, 32, 3, 2), "y": np.array(labels, np.uint8)})


def usps(root: Path) -> None:
    for name in ("usps.bz2", "usps.t.bz2"):
        row = " ".join(f"{number}:{number / 256 - 0.5:.3f}" for number in range(1, 257))
        put(root / name, bz2.compress(f"1 {row}\n10 {row}\n".encode()))


def dtd(root: Path) -> None:
    for shade, part in enumerate(("train", "test")):
        put(root / f"dtd/dtd/labels/{part}1.txt", f"dotted/{part}_1.jpg\nbanded/{part}_2.jpg\n")
        put(root / f"dtd/dtd/images/dotted/{part}_1.jpg", png(shade))
        put(root / f"dtd/dtd/images/banded/{part}_2.jpg", png(10 + shade))


def oxford_pet(root: Path) -> None:
    for part in ("trainval", "test"):
        put(root / f"oxford-iiit-pet/annotations/{part}.txt", f"Abyssinian_{part} 1 1 1\nbasset_hound_{part} 2 2 1\n")
        for shade, name in enumerate((f"Abyssinian_{part}", f"basset_hound_{part}")):
            put(root / f"oxford-iiit-pet/images/{name}.jpg", png(shade))


def aircraft(root: Path) -> None:
    data = root / "fgvc-aircraft-2013b" / "data"
    put(data / "variants.txt", "707-320\nA300\n")
    for shade, part in enumerate(("trainval", "test")):
        put(data / f"images_variant_{part}.txt", f"000{shade} A300\n")
        put(data / "images" / f"000{shade}.jpg", png(shade))


def flowers(root: Path) -> None:
    from scipy.io import savemat

    folder = root / "flowers-102"
    for number in range(1, 4):
        put(folder / "jpg" / f"image_{number:05d}.jpg", png(number))
    savemat(folder / "imagelabels.mat", {"labels": np.array([[102, 5, 1]])})
    savemat(
        folder / "setid.mat", {"trnid": np.array([[1, 3]]), "valid": np.array([[9, 9]]), "tstid": np.array([[2, 1]])}
    )


def food(root: Path) -> None:
    for shade, part in enumerate(("train", "test")):
        put(root / f"food-101/meta/{part}.json", json.dumps({"ramen": [f"ramen/{part}"], "pho": [f"pho/{part}"]}))
        for name in ("ramen", "pho"):
            put(root / f"food-101/images/{name}/{part}.jpg", png(shade))


def gtsrb(root: Path) -> None:
    for name, shade in (("00000", 1), ("00001", 2)):
        put(root / f"gtsrb/GTSRB/Training/{name}/1.ppm", png(shade))
    put(root / "gtsrb/GT-final_test.csv", "Filename;ClassId\n7.ppm;1\n")
    put(root / "gtsrb/GTSRB/Final_Test/Images/7.ppm", png(7))


def folders(root: Path, parts: tuple[str, ...], classes: tuple[str, str], ending: str) -> None:
    for shade, part in enumerate(parts):
        for name in classes:
            put(root / part / name / f"1{ending}", png(shade))


def imagenette(root: Path) -> None:
    folders(root / "imagenette2", ("train", "val"), ("n01440764", "n02102040"), ".jpeg")


def country(root: Path) -> None:
    folders(root / "country211", ("train", "test"), ("AD", "AE"), ".jpg")


def sst2(root: Path) -> None:
    folders(root / "rendered-sst2", ("train", "test"), ("negative", "positive"), ".png")


def cars(root: Path) -> None:
    from scipy.io import savemat

    folder = root / "stanford_cars"
    kind = [("fname", object), ("class", object)]
    for part, path in (("train", "devkit/cars_train_annos.mat"), ("test", "cars_test_annos_withlabels.mat")):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        table = np.array([("1.jpg", 2), ("2.jpg", 1)], dtype=kind)
        savemat(folder / path, {"annotations": table})
        for number in (1, 2):
            put(folder / f"cars_{part}" / f"{number}.jpg", png(number))
    savemat(folder / "devkit" / "cars_meta.mat", {"class_names": np.array(["Acura", "BMW"], dtype=object)})


NEAREST = {"train": [7.9, 8.0], "val": [9.7, 31.0]}


def clevr(root: Path) -> None:
    folder = root / "clevr" / "CLEVR_v1.0"
    for part, distances in NEAREST.items():
        scenes = []
        for number, distance in enumerate(distances):
            objects = [{"pixel_coords": [1, 2, far]} for far in (distance, distance + 1, 40.0)[: 2 + number]]
            scenes.append({"image_filename": f"CLEVR_{part}_{number}.png", "objects": objects})
            put(folder / "images" / part / f"CLEVR_{part}_{number}.png", png(number))
        put(folder / "scenes" / f"CLEVR_{part}_scenes.json", json.dumps({"scenes": scenes}))


def pcam(root: Path) -> None:
    import h5py

    for part, rows in (("train", 3), ("test", 2)):
        for axis, content in (("x", pixels(rows, 96, 96, 3)), ("y", np.arange(rows).reshape(rows, 1, 1, 1) % 2)):
            path = root / "pcam" / f"camelyonpatch_level_2_split_{part}_{axis}.h5"
            path.parent.mkdir(exist_ok=True)
            with h5py.File(path, "w") as file:
                file[axis] = content


def caltech(root: Path, num: int = 3) -> None:
    for name in ("BACKGROUND_Google", "ant", "bass"):
        for number in range(1, num + 1):
            path = root / "caltech101" / "101_ObjectCategories" / name / f"image_{number:04d}.jpg"
            put(path, png(number + 100 * (name == "bass")))


def eurosat(root: Path) -> None:
    folders(root / "eurosat", ("2750",), ("Forest", "River"), ".jpg")


def sun(root: Path) -> None:
    put(root / "SUN397" / "ClassName.txt", "/a/abbey\n/a/access_road\n")
    for number, name in enumerate(("abbey", "access_road")):
        for image in ("sun_aaa", "sun_aab", "sun_aac"):
            put(root / "SUN397" / "a" / name / f"{image}.jpg", png(number))
    put(root / "SUN397" / "Training_01.txt", "/a/access_road/sun_aaa.jpg\n/a/abbey/sun_aab.jpg\n")
    put(root / "SUN397" / "Testing_01.txt", "/a/abbey/sun_aaa.jpg\n")


FILES: dict[str, Callable[[Path], None]] = {
    "CIFAR10": cifar10,
    "CIFAR100": cifar100,
    "CLEVRClassification": clevr,
    "Country211": country,
    "DTD": dtd,
    "FGVCAircraft": aircraft,
    "FashionMNIST": lambda root: mnist(root, "FashionMNIST"),
    "Flowers102": flowers,
    "Food101": food,
    "GTSRB": gtsrb,
    "Imagenette": imagenette,
    "KMNIST": lambda root: mnist(root, "KMNIST"),
    "MNIST": lambda root: mnist(root, "MNIST"),
    "OxfordIIITPet": oxford_pet,
    "PCAM": pcam,
    "RenderedSST2": sst2,
    "STL10": stl10,
    "SVHN": svhn,
    "StanfordCars": cars,
    "USPS": usps,
}


@pytest.fixture
def _any_content(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files made here do not have the checksums of the true ones."""
    for module in ("cifar", "stl10", "svhn", "flowers102"):
        monkeypatch.setattr(
            f"torchvision.datasets.{module}.check_integrity", lambda path, md5=None: os.path.isfile(path)
        )


def source_of(dataset: str, root: Path, **settings: object) -> TorchvisionDataset:
    return TorchvisionDataset(TorchvisionDataset.Config(dataset=dataset, root=str(root), **settings))  # type: ignore[arg-type]


def message_of(source: TorchvisionDataset, name: str = "train") -> str:
    with pytest.raises(ConfigError) as caught:
        source.required(name)
    return str(caught.value)


@pytest.mark.usefixtures("_any_content")
@pytest.mark.parametrize("name", ["train", "test"])
@pytest.mark.parametrize("dataset", [dataset for dataset in LAYOUTS if dataset not in (*WHOLE, "EuroSAT", "PCAM")])
def test_images_and_labels_are_those_that_torchvision_gives(tmp_path: Path, dataset: str, name: str) -> None:
    check_part(tmp_path, dataset, name)


@pytest.mark.cluster  # h5py asks another process for the name of the CPU
@pytest.mark.parametrize("name", ["train", "test"])
def test_rows_of_patch_camelyon_are_those_that_torchvision_gives(tmp_path: Path, name: str) -> None:
    pytest.importorskip("h5py")
    check_part(tmp_path, "PCAM", name)


def check_part(tmp_path: Path, dataset: str, name: str) -> None:
    FILES[dataset](tmp_path)
    split = source_of(dataset, tmp_path).required(name)
    layout = LAYOUTS[dataset]
    part = layout.train if name == "train" else layout.test
    argument = "train" if isinstance(part, bool) else "split"
    expected = vars(torchvision.datasets)[dataset](str(tmp_path), **{argument: part})
    rows = all_rows(split)
    assert len(rows.images) == len(expected) > 0
    for image, label, (picture, target) in zip(rows.images, rows.labels, expected, strict=True):
        assert np.array_equal(decode(image).permute(1, 2, 0), np.array(picture.convert("RGB")))
        assert label == target
    assert len(split.classes) > rows.labels.max()
    assert split.is_random_access
    assert len(pickle.dumps(split)) < 3000
    assert len(set(rows.names)) == len(rows.names)


def test_the_documentation_names_every_dataset() -> None:
    listed = " ".join((TorchvisionDataset.__doc__ or "").split()).partition("Names: ")[2].partition(".")[0]
    assert listed.split(", ") == sorted(LAYOUTS)


@pytest.mark.usefixtures("_any_content")
def test_classes_have_torchvisions_names_else_numbers(tmp_path: Path) -> None:
    expected = {
        "CIFAR10": ("a", "b", "c"),
        "STL10": ("airplane", "bird", "car"),
        "SVHN": ("0", "1"),
        "Imagenette": ("tench, Tinca tinca", "English springer, English springer spaniel"),
        "OxfordIIITPet": ("Abyssinian", "Basset Hound"),
    }
    for dataset, classes in expected.items():
        FILES[dataset](tmp_path)
        assert source_of(dataset, tmp_path).required("train").classes == classes
    FILES["MNIST"](tmp_path)
    assert source_of("MNIST", tmp_path).required("test").classes[9] == "9 - nine"


@pytest.mark.usefixtures("_any_content")
def test_parts_can_be_chosen_in_torchvisions_words(tmp_path: Path) -> None:
    stl10(tmp_path)
    rows = all_rows(source_of("STL10", tmp_path, train_split="unlabeled").required("train"))
    assert rows.labels.tolist() == [-1] * 4
    assert rows.names[3] == "STL10 unlabeled 3"
    message = message_of(source_of("STL10", tmp_path, train_split="unlabelled"))
    assert message.startswith("cannot use torchvision's STL10, part 'unlabelled'")
    assert "unlabeled" in message
    assert "data.test_split='val': CIFAR10 has only train and test; leave it out" in message_of(
        source_of("CIFAR10", tmp_path, test_split="val"), "test"
    )


def test_validation_images_that_are_trained_on_are_refused(tmp_path: Path) -> None:
    aircraft(tmp_path)
    data = tmp_path / "fgvc-aircraft-2013b" / "data"
    put(data / "images_variant_val.txt", "0000 A300\n")
    settings = {"validation_split": "val"}
    assert message_of(source_of("FGVCAircraft", tmp_path, **settings)) == (
        "data.validation_split='val': 1 of its 1 images are in the part 'trainval', such as "
        "fgvc-aircraft-2013b/data/images/0000.jpg; set data.train_split= to one without them"
    )


@pytest.mark.usefixtures("_any_content")
def test_other_labels_have_another_fingerprint(tmp_path: Path) -> None:
    prints = set()
    for name in ("a", "b"):
        cifar10(tmp_path / name)
        prints.add(source_of("CIFAR10", tmp_path / name).required("train").fingerprint)
    assert len(prints) == 1, "wherever it lies"
    prints.add(source_of("CIFAR10", tmp_path / "a").required("test").fingerprint)
    assert len(prints) == 2


def test_an_image_that_vanishes_later_is_missing(tmp_path: Path) -> None:
    dtd(tmp_path)
    train = source_of("DTD", tmp_path).required("train")
    (tmp_path / "dtd/dtd/images/dotted/train_1.jpg").unlink()
    assert all_rows(train).images == [Missing("file not found"), png(10)]


@pytest.mark.parametrize("dataset", ["CIFAR10", "MNIST", "DTD", "Food101", "USPS"])
def test_a_dataset_that_is_absent_is_not_fetched_unasked(tmp_path: Path, dataset: str) -> None:
    message = message_of(source_of(dataset, tmp_path))
    assert f"torchvision's {dataset} is missing or incomplete in '{tmp_path}'" in message
    assert message.endswith("set data.download=true to download it, or data.root= to its folder")
    assert not list(tmp_path.iterdir())


def test_a_damaged_dataset_is_told(tmp_path: Path) -> None:
    cifar10(tmp_path)
    assert "Dataset not found or corrupted" in message_of(source_of("CIFAR10", tmp_path))


def test_a_download_is_asked_for_once_and_its_failure_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def fetch(url: str, download_root: str, **_: object) -> None:
        asked.append(url)
        if len(asked) == 1:
            raise OSError("no route to host")
        dtd(tmp_path)

    monkeypatch.setattr("torchvision.datasets.dtd.download_and_extract_archive", fetch)
    source = source_of("DTD", tmp_path, download=True)
    assert message_of(source) == f"cannot download torchvision's DTD into '{tmp_path}': no route to host"
    assert all_rows(source.required("train")).images == [png(0), png(10)]
    assert all_rows(source.required("test")).images == [png(1), png(11)]
    assert len(asked) == 2


def test_an_array_dataset_is_fetched_by_the_driver_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torchvision.datasets.MNIST, "download", lambda self: mnist(tmp_path, "MNIST"))
    train = source_of("MNIST", tmp_path, download=True).required("train")
    monkeypatch.setattr(torchvision.datasets.MNIST, "download", lambda self: pytest.fail("fetched again"))
    assert sent(train).read(np.array([2, 0])).labels.tolist() == [2, 0]


def test_names_that_pick_nothing_are_told(tmp_path: Path) -> None:
    assert "did you mean CIFAR10?" in message_of(source_of("Cifar10", tmp_path))
    assert "known: CIFAR10, CIFAR100, " in message_of(TorchvisionDataset(TorchvisionDataset.Config()))
    for settings in (
        TorchvisionDataset.Config(dataset="DTD"),
        TorchvisionDataset.Config(dataset="DTD", root="s3://bucket"),
    ):
        assert "torchvision needs a local folder" in message_of(TorchvisionDataset(settings))


@pytest.mark.parametrize(("dataset", "files", "num"), [("Caltech101", caltech, 6), ("EuroSAT", eurosat, 2)])
def test_datasets_without_parts_are_read_whole(
    tmp_path: Path, dataset: str, files: Callable[[Path], None], num: int
) -> None:
    files(tmp_path)
    source = source_of(dataset, tmp_path)
    rows = all_rows(source.required("train"))
    expected = vars(torchvision.datasets)[dataset](str(tmp_path))
    assert len(rows.images) == len(expected) == num
    for image, label, (picture, target) in zip(rows.images, rows.labels, expected, strict=True):
        assert np.array_equal(decode(image).permute(1, 2, 0), np.array(picture.convert("RGB")))
        assert label == target
    assert source.optional("test") is None
    assert "leave out data.train_split=" in message_of(source_of(dataset, tmp_path, train_split="train"))


def test_parts_of_sun397_are_the_lists_of_its_first_split(tmp_path: Path) -> None:
    sun(tmp_path)
    source = source_of("SUN397", tmp_path)
    train, test = source.required("train"), source.required("test")
    assert [name.partition("SUN397/")[2] for name in all_rows(train).names] == [
        "a/access_road/sun_aaa.jpg",
        "a/abbey/sun_aab.jpg",
    ]
    assert (all_rows(train).labels.tolist(), all_rows(test).labels.tolist()) == ([1, 0], [0])
    assert train.classes == ("abbey", "access_road")
    assert "there: Testing_01, Training_01" in message_of(source_of("SUN397", tmp_path, train_split="Training_02"))
    (tmp_path / "SUN397" / "a" / "abbey" / "sun_aab.jpg").unlink()
    assert "1 of the 2 images" in message_of(source)


def test_the_nearest_object_of_clevr_is_in_one_of_six_ranges(tmp_path: Path) -> None:
    clevr(tmp_path)
    source = source_of("CLEVRClassification", tmp_path, target="distance")
    assert all_rows(source.required("train")).labels.tolist() == [0, 1]
    assert all_rows(source.required("test")).labels.tolist() == [4, 5]
    assert source.required("train").classes == CLEVR_DISTANCES
    (tmp_path / "clevr/CLEVR_v1.0/images/test").mkdir()
    put(tmp_path / "clevr/CLEVR_v1.0/images/test/CLEVR_test_0.png", png(1))
    assert "has no labels" in message_of(source_of("CLEVRClassification", tmp_path, test_split="test"), "test")


def test_published_validation_images_stand_behind_the_training_images(tmp_path: Path) -> None:
    dtd(tmp_path)
    put(tmp_path / "dtd/dtd/labels/val1.txt", "banded/val_2.jpg\n")
    put(tmp_path / "dtd/dtd/images/banded/val_2.jpg", png(77))
    split = source_of("DTD", tmp_path, validation_split="val").required("train")
    assert (split.num_samples, split.num_validation) == (3, 1)
    assert all_rows(split).images[-1] == png(77)
    assert Subset(split, np.array([0, 2])).num_validation == 1
    assert source_of("DTD", tmp_path, validation_split="val").required("test").num_validation == 0


def test_arrays_have_no_validation_part(tmp_path: Path) -> None:
    cifar10(tmp_path)
    assert "not stored as files" in message_of(source_of("CIFAR10", tmp_path, validation_split="val"))


def test_looking_for_a_dataset_makes_no_folder(tmp_path: Path) -> None:
    assert "missing or incomplete" in message_of(source_of("Caltech101", tmp_path / "none"))
    assert not (tmp_path / "none").exists()
