"""Volumes in NIfTI files and arrays in folders and lists, as one image a slice."""

import io
import tarfile
from dataclasses import replace
from itertools import islice
from pathlib import Path

import fsspec
import nibabel
import numpy as np
import pytest
import torch
from PIL import Image

from raysl.components import resolve
from raysl.config.load import load_config
from raysl.data.decode.decode import CorruptImage, decode
from raysl.data.decode.images import check_readable, read_images
from raysl.data.ingest.ingest import ingest_source
from raysl.data.ingest.inspect import inspect
from raysl.data.ingest.shard import Layout
from raysl.data.limits import Limits, limiting
from raysl.data.sources import frames as frames_of_files
from raysl.data.sources.file_list import FileList
from raysl.data.sources.frames import FramesSplit
from raysl.data.sources.image_folder import ImageFolder
from raysl.data.sources.listing import parse_frame
from raysl.data.sources.parquet import Parquet
from raysl.data.split import Missing, Split
from raysl.data.stream.loader import LocalBatches
from raysl.errors import ConfigError
from raysl.train.prepare import prepare
from tests.data.counted import counted_storage
from tests.data.nifti import TEXT, nifti, nifti_gz
from tests.data.samples import all_rows, sent
from tests.data.volumes import CHANNELS, folder, opened, pixels, same

RANDOM = np.random.default_rng(0)
VOLUME = RANDOM.integers(0, 1000, (8, 6, 5)).astype(np.int16)  # [X, Y, Z]
EXPECTED = np.rint(VOLUME.T * 0.255).astype(np.uint8)  # [Z, Y, X]


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def listed(path: Path, lines: str) -> Split:
    (path / "list.csv").write_text(f"path,label\n{lines}")
    return FileList(FileList.Config(train=str(path / "list.csv"), **CHANNELS)).required("train")


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("2.nii", nifti(VOLUME)),
        ("2.NII", nifti(VOLUME, order=">")),
        ("2.nii", nifti(VOLUME.astype(np.float32), version=2)),
        ("2.nii.gz", nifti_gz(VOLUME)),
        ("2.nii", nifti_gz(VOLUME)),
        ("2.nii.gz", nifti(VOLUME)),
        ("2.npy", npy(np.ascontiguousarray(VOLUME.T))),
    ],
    ids=["NIfTI", "big endian", "NIfTI 2", "gz", "gz by content", "plain by content", "array"],
)
def test_each_slice_is_an_image_with_the_label_and_name_of_its_file(name: str, file: bytes, tmp_path: Path) -> None:
    single = nifti(VOLUME[:, :, 0])
    split = opened(folder(tmp_path, {"a/1.nii": single, f"a/{name}": file, "b/3.nii": single}))
    assert (split.num_samples, split.classes) == (7, ("a", "b"))
    rows = all_rows(split)
    assert rows.labels.tolist() == [0] * 6 + [1]
    names = ["a/1.nii", *(f"a/{name}#{number}" for number in range(1, 6)), "b/3.nii"]
    assert rows.names == [f"{tmp_path}/{name}" for name in names]
    assert same(pixels(split), [EXPECTED[0], *EXPECTED, EXPECTED[0]])
    assert same(pixels(split, [6, 3, 0, 5, 3, 0]), EXPECTED[[0, 2, 0, 4, 2, 0]])


def test_slices_are_those_of_nibabel_along_the_third_axis(tmp_path: Path) -> None:
    for name in ("1.nii", "2.nii.gz"):
        image = nibabel.Nifti1Image(VOLUME.astype(np.float32) / 7, np.diag([-1.0, 2.0, 3.0, 1.0]))
        image.to_filename(tmp_path / name)
        values = nibabel.load(tmp_path / name).get_fdata().transpose(2, 1, 0)  # type: ignore[attr-defined]
        expected = np.rint(values.clip(0, 100) * 2.55).astype(np.uint8)
        split = opened(tmp_path, value_range=(0.0, 100.0))
        assert same(pixels(split)[-5:], expected)


def test_a_volume_has_its_slope_and_intercept(tmp_path: Path) -> None:
    split = opened(folder(tmp_path, {"1.nii": nifti(VOLUME, 2.0, -500.0)}))
    assert same(pixels(split), np.rint((VOLUME.T * 2.0 - 500).clip(0, 1000) * 0.255).astype(np.uint8))


def test_times_follow_each_other_slice_by_slice(tmp_path: Path) -> None:
    film = RANDOM.integers(0, 1000, (4, 3, 2, 3)).astype(np.int16)
    split = opened(folder(tmp_path, {"1.nii.gz": nifti_gz(film)}))
    expected = [film[:, :, z, time].T for time in range(3) for z in range(2)]
    assert same(pixels(split), np.rint(np.array(expected) * 0.255).astype(np.uint8))


@pytest.mark.parametrize("name", ["1.nii", "1.npy"])
def test_a_slice_is_read_alone(name: str, tmp_path: Path) -> None:
    big = RANDOM.integers(0, 1000, (256, 256, 40)).astype(np.int16)  # 131 kB a slice
    file = nifti(big) if name == "1.nii" else npy(np.ascontiguousarray(big.T))
    path = folder(tmp_path, {name: file})
    with counted_storage() as storage:
        ImageFolder(ImageFolder.Config(path=f"counted://{path}", **CHANNELS)).split("train")
        assert storage.num_bytes < 200_000, "a range around the header"
        split = opened(f"counted://{path}")
        storage.num_bytes = 0
        (image,) = split.read(np.array([17])).images
    assert storage.num_bytes == big[:, :, 17].nbytes
    assert np.array_equal(decode(image, bands=split.bands)[0], np.rint(big[:, :, 17].T * 0.255).astype(np.uint8))
    assert split.is_random_access


def test_files_of_a_remote_storage_are_cut_too(tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe("/raysl_nifti/a/1.nii", nifti(VOLUME))
    memory.pipe("/raysl_nifti/a/2.nii.gz", nifti_gz(VOLUME))
    memory.pipe("/raysl_nifti/a/3.npy", npy(np.ascontiguousarray(VOLUME.T)))
    assert same(pixels(opened("memory://raysl_nifti")), [*EXPECTED] * 3)


def test_slices_of_a_compressed_file_are_a_read_unit_that_is_decompressed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"1.nii": nifti(VOLUME), "2.nii.gz": nifti_gz(VOLUME), "3.nii.gz": nifti_gz(VOLUME[:, :, :3])}
    split = opened(folder(tmp_path, {**files, "4.npy": npy(VOLUME[0])}))
    assert split.unit_sizes.tolist() == [5, 5, 3, 1]
    assert not split.is_random_access
    reads: list[int] = []
    read = frames_of_files.read_inflated
    monkeypatch.setattr(frames_of_files, "read_inflated", lambda file, *of: reads.append(len(of[0])) or read(file, *of))
    split.read(np.array([9, 5, 0, 7, 12, 7]))
    assert reads == [4, 1]
    monkeypatch.setattr(frames_of_files, "UNIT_BYTES", 2 * VOLUME[:, :, 0].nbytes)
    assert opened(tmp_path).unit_sizes.tolist() == [5, 2, 2, 1, 2, 1, 1]


def test_a_list_labels_files_or_slices_and_a_compressed_file_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder(tmp_path, {"1.nii.gz": nifti_gz(VOLUME), "2.nii": nifti(VOLUME), "3.npy": npy(VOLUME.T.copy())})
    heads: list[str] = []
    find = frames_of_files._find
    monkeypatch.setattr(
        frames_of_files, "_find", lambda system, path, num: heads.append(path) or find(system, path, num)
    )
    split = listed(tmp_path, "1.nii.gz#3,1\n1.nii.gz#1,0\n2.nii#5,1\n3.npy#2,0\n1.nii.gz#2,1\n")
    assert sorted(Path(path).name for path in heads) == ["1.nii.gz", "2.nii", "3.npy"]
    assert same(pixels(split), EXPECTED[[2, 0, 4, 1, 1]])
    rows = all_rows(split)
    assert rows.labels.tolist() == [1, 0, 1, 0, 1]
    assert [Path(name).name for name in rows.names] == ["1.nii.gz#3", "1.nii.gz#1", "2.nii#5", "3.npy#2", "1.nii.gz#2"]
    assert split.unit_sizes.tolist() == [2, 2, 1]
    reads: list[int] = []
    read = frames_of_files.read_inflated
    monkeypatch.setattr(frames_of_files, "read_inflated", lambda file, *of: reads.append(len(of[0])) or read(file, *of))
    assert same(pixels(split, [4, 1, 0]), EXPECTED[[1, 0, 2]])
    assert reads == [3]
    assert listed(tmp_path, "1.nii.gz,1\n3.npy,0\n").labels_of(np.arange(10)).tolist() == [1] * 5 + [0] * 5
    with pytest.raises(ConfigError, match=r"list.csv lists 1 images more than once, first '.*/2.nii'; remove"):
        listed(tmp_path, "2.nii,0\n2.nii#3,1\n")
    with pytest.raises(ConfigError, match=r"/3.npy has 5 frames, and frame 6 is listed"):
        listed(tmp_path, "3.npy#6,0\n")


def test_the_slice_of_a_name() -> None:
    assert parse_frame("s3://b/x#1/a.NII.gz#20") == ("s3://b/x#1/a.NII.gz", 20)
    assert parse_frame("a.nii#2") == ("a.nii", 2)
    assert parse_frame("a.npy#3") == ("a.npy", 3)
    assert parse_frame("a.npz#3") == ("a.npz#3", 0)
    assert parse_frame("a.gz#3") == ("a.gz#3", 0)


@pytest.mark.parametrize(
    ("shape", "channels", "num"),
    [
        ((5, 6, 8), 1, 5),
        ((5, 6, 8, 1), 1, 5),
        ((1, 6, 8), 1, 1),
        ((6, 8, 1), 1, 1),
        ((6, 8), 1, 1),
        ((5, 6, 8, 3), 3, 5),
        ((1, 6, 8, 3), 3, 1),
        ((6, 8, 3), 3, 1),
        ((3, 6, 8), 3, 1),
    ],
)
@pytest.mark.parametrize("order", ["<u2", ">u2"])
def test_arrays_of_slices_are_told_from_arrays_of_one_image(
    shape: tuple[int, ...], channels: int, num: int, order: str, tmp_path: Path
) -> None:
    array = RANDOM.integers(0, 1000, shape).astype(order)
    path = folder(tmp_path, {"1.npy": npy(array)})
    facts = {"channels": channels, "mean": (0.5,) * channels, "std": (0.25,) * channels}
    split = opened(path, **facts)
    assert split.num_samples == num
    images = [decode(image, bands=split.bands).numpy() for image in all_rows(split).images]
    expected = np.rint(array.astype(np.float64) * 0.255).astype(np.uint8)
    if shape == (3, 6, 8) or (channels == 1 and len(shape) == 3 and shape[2] != 1):
        expected = expected.reshape(num, channels, 6, 8)
    else:
        expected = expected.reshape(num, 6, 8, channels).transpose(0, 3, 1, 2)
    assert same(images, expected)
    assert all_rows(split).names == [f"{path}/1.npy{f'#{n + 1}' if num > 1 else ''}" for n in range(num)]


def test_slices_of_8_bits_with_an_odd_number_of_bytes(tmp_path: Path) -> None:
    array = RANDOM.integers(0, 256, (4, 3, 5)).astype(np.uint8)
    split = opened(folder(tmp_path, {"1.npy": npy(array), "2.nii": nifti(array.T)}), value_range=None)
    assert same(pixels(split), [*array, *array])


def test_arrays_are_no_images_of_a_folder_in_rgb(tmp_path: Path) -> None:
    path = folder(
        tmp_path, {"1.npy": npy(np.zeros((5, 6, 8), np.uint8)), "2.nii": nifti(np.zeros((6, 8, 2), np.uint8))}
    )
    facts = {"channels": "rgb", "mean": (0.5,) * 3, "std": (0.25,) * 3, "value_range": None}
    split = opened(path, **facts)
    assert split.num_samples == 2
    assert decode(all_rows(split).images[1]).shape == (3, 8, 6)


def test_damaged_volumes_are_one_corrupt_image_and_a_cut_archive_loses_its_last_slices(tmp_path: Path) -> None:
    noise = RANDOM.integers(0, 1000, (64, 64, 5)).astype(np.int16)
    cut = nifti_gz(noise)
    files = {
        "1.nii": nifti(VOLUME),
        "2.nii": nifti(VOLUME)[:-1],
        "3.nii": b"no NIfTI file",
        "4.npy": npy(VOLUME.T.copy())[:-1],
        "5.npy": npy(VOLUME.T),
        "6.nii.gz": cut[: len(cut) // 2],
        "7.nii.gz": b"\x1f\x8bno archive",
    }
    split = opened(folder(tmp_path, files))
    assert split.num_samples == 5 + 4 + 5 + 1
    reasons = [image.reason for image in split.read(np.array([5, 6, 7, 8, 14])).images if isinstance(image, Missing)]
    assert [reason.partition(";")[0] for reason in reasons] == [
        "a NIfTI file that ends before its 5 slices do",
        "13 bytes that are not a NIfTI file",
        "an array that ends before its 5 slices do",
        "an array [5, 6, 8] in Fortran's order, whose slices are not one after another",
        reasons[4],
    ]
    assert reasons[4].startswith("a damaged gzip file")
    images = split.read(np.arange(9, 14)).images
    assert [isinstance(image, Missing) for image in images] == [False, False, True, True, True]
    expected = np.rint(noise[:, :, 1].T * 0.255).astype(np.uint8)
    assert np.array_equal(decode(images[1], bands=split.bands)[0], expected)
    replaced = read_images(split, np.array([5, 12])).corrupt
    # the neighbour in the same read unit takes its place
    assert [(image.row, image.other) for image in replaced] == [(5, 0), (12, 9)]
    assert replaced[0].startswith(f"{tmp_path}/2.nii: a NIfTI file that ends before")
    with limiting(Limits(max_file_bytes=50)):
        assert split.read(np.array([0, 9])).images == [Missing("more than 50 bytes")] * 2


@pytest.mark.parametrize("name", ["1.dcm", "1.nii", "1.nii.gz"])
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000"])
def test_an_ordinary_image_with_the_name_of_a_volume_is_read(tmp_path: Path, name: str, kind: str) -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (6, 4), (200, 100, 0)).save(buffer, kind, lossless=True)
    volume = nifti(VOLUME.astype(np.uint8))
    folder(tmp_path, {f"train/a/{name}": buffer.getvalue(), "train/b/2.nii": volume})
    split = ImageFolder(ImageFolder.Config(path=str(tmp_path))).required("train")
    assert split.labels_of(np.arange(split.num_samples)).tolist() == [0, 1, 1, 1, 1, 1]
    images = [decode(image) for image in all_rows(split).images]
    assert images[0].shape == (3, 4, 6)
    assert (images[0].float() - torch.tensor([200.0, 100.0, 0.0])[:, None, None]).abs().max() <= 2
    assert np.array_equal(images[3][0], VOLUME[:, :, 2].T.astype(np.uint8))
    with pytest.raises(ConfigError, match=rf"/{name} has 1 frames, and frame 2 is listed"):
        listed(tmp_path, f"train/a/{name}#2,0\n")


def test_values_without_a_range_are_refused_at_the_start_with_theirs(tmp_path: Path) -> None:
    values = VOLUME.astype(np.float32) / 4
    path = folder(tmp_path, {"train/a/1.nii.gz": nifti_gz(values)})
    words = [f"data={path}", "data.channels=1", "data.image_size=16", "data.limit=null", "views=null"]
    message = r"1.nii.gz#1: its values are float32 from [\d.]+ to [\d.]+, and .*; set data.channels=1 and data.value_ra"
    with pytest.raises(ConfigError, match=message):
        prepare(load_config("quickstart", words))


def test_without_nibabel_the_start_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder(tmp_path, {"1.npy": npy(VOLUME.T.copy()), "2.nii.gz": nifti_gz(VOLUME)})
    monkeypatch.setitem(__import__("sys").modules, "nibabel", None)
    with pytest.raises(ConfigError, match=r"1 of the 2 images, first .*/2.nii.gz: .*pip install 'raysl\[medical\]'"):
        opened(tmp_path)


def test_the_fingerprint_changes_with_the_slices(tmp_path: Path) -> None:
    first = opened(folder(tmp_path / "a", {"1.nii": nifti(VOLUME)})).fingerprint
    assert opened(folder(tmp_path / "b", {"1.nii": nifti(VOLUME)})).fingerprint == first
    others = nifti(VOLUME.reshape(8, 3, 10))
    assert len(others) == len(nifti(VOLUME))
    assert opened(folder(tmp_path / "c", {"1.nii": others})).fingerprint != first


def test_ingest_stores_each_slice_without_texts_and_training_reads_the_same_pixels(tmp_path: Path) -> None:
    files = {"a/1.nii.gz": nifti_gz(VOLUME, 0.5, 100), "b/2.nii": nifti(VOLUME), "b/3.npy": npy(VOLUME.T.copy())}
    path = folder(tmp_path / "in", files)
    data = ImageFolder.Config(path=str(path), **CHANNELS)
    ingest_source(data, str(tmp_path / "out"), Layout(rows_per_file=4, rows_per_group=2, seed=None))
    stored = Parquet(Parquet.Config(path=str(tmp_path / "out"), **CHANNELS)).required("train")
    assert same(pixels(stored), pixels(opened(path)))
    rows = all_rows(stored)
    assert rows.names[:6] == [*(f"{path}/a/1.nii.gz#{number}" for number in range(1, 6)), f"{path}/b/2.nii#1"]
    assert rows.labels.tolist() == [0] * 5 + [1] * 10
    assert not any(TEXT.encode() in image for image in rows.images if isinstance(image, bytes))


def test_checking_a_folder_counts_slices(tmp_path: Path) -> None:
    path = folder(tmp_path, {"a/1.nii": nifti(VOLUME), "b/2.nii": nifti(VOLUME)[:-9]})
    table = inspect(ImageFolder.Config(path=str(path), **CHANNELS)).table()
    assert "NIfTI 5" in table
    assert f"train 5 {path}/b/2.nii: corrupt: a NIfTI file that ends before" in table


def test_members_of_a_tar_may_be_slices_and_no_volumes(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "train-0.tar", "w") as tar:
        for number, values in enumerate((VOLUME[:, :, 0], VOLUME)):
            member, content = tarfile.TarInfo(f"{number}.nii"), nifti(values)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    source = resolve("source", "webdataset")
    split = source(source.Config(path=str(tmp_path), **CHANNELS)).required("train")
    one, several = split.read(np.arange(2)).images
    assert np.array_equal(decode(one, bands=split.bands)[0], EXPECTED[0])
    with pytest.raises(CorruptImage, match="a NIfTI file of 5 slices; image_folder and file_list make each an image"):
        decode(several, bands=split.bands)


@pytest.mark.thorough
@pytest.mark.parametrize("is_compressed", [False, True])
def test_a_run_goes_on_at_any_step_with_any_number_of_ranks(is_compressed: bool, tmp_path: Path) -> None:
    volumes = RANDOM.integers(0, 1000, (6, 20, 24, 8)).astype(np.int16)
    write, ending = (nifti_gz, ".nii.gz") if is_compressed else (nifti, ".nii")
    files = {f"train/{number % 2}/{number}{ending}": write(volume) for number, volume in enumerate(volumes)}
    words = [f"data={folder(tmp_path, files)}", "data.channels=1", "data.image_size=16", "data.limit=null"]
    words += ["data.value_range=[0,1000]", "backbone.num_stages=1", "backbone.width=4", "data.lanes=2", "views=null"]
    config = load_config("quickstart", words)
    config = replace(config, train=replace(config.train, batch_size=8, accumulate=1), benchmarks={})
    loader = prepare(config).loader
    assert loader.has_windows == is_compressed
    whole = list(islice(LocalBatches(loader).from_step(0), 12))  # two epochs
    assert sorted(torch.cat([batch.index for batch in whole[:6]]).tolist()) == list(range(48))
    for batch, again in zip(whole[3:], LocalBatches(loader).from_step(3), strict=False):
        assert torch.equal(batch.views["global"], again.views["global"])
    parts = [list(islice(LocalBatches(loader, rank, 2).from_step(0), 12)) for rank in range(2)]
    for batch, *ranks in zip(whole, *parts, strict=True):
        assert torch.equal(torch.cat([part.views["global"] for part in ranks]), batch.views["global"])


def test_a_split_arrives_whole_in_another_process(tmp_path: Path) -> None:
    split = opened(folder(tmp_path, {"1.nii.gz": nifti_gz(VOLUME)}))
    assert isinstance(split, FramesSplit)
    assert sent(split).read(np.array([2])).images == split.read(np.array([2])).images


def test_volumes_that_all_want_a_range_are_refused_by_the_first(tmp_path: Path) -> None:
    files = {"a.nii": nifti(VOLUME), "b.nii.gz": nifti_gz(VOLUME)}
    config = ImageFolder.Config(path=str(folder(tmp_path, files)))
    first = VOLUME[..., 0]
    with pytest.raises(ConfigError, match="none of the 10 training images can be read with these settings") as error:
        check_readable(ImageFolder(config).required("train"), "training")
    assert f"a.nii#1: its values are int16 from {first.min()} to {first.max()}, and" in str(error.value)
    assert str(error.value).endswith("data.value_range=[low, high], the values that become 0 and 255")
