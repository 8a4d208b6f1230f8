"""Features on disk: whole parts, gone on with, refused where they are others; memory that does not grow with them."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

from raysl.benchmarks.benchmark import FEATURES
from raysl.benchmarks.features import stored_features
from raysl.benchmarks.features.embedding import StagedNetwork, decoded, encoded
from raysl.benchmarks.features.extraction import Numpy, Wanted, feature_sets, over_chunks
from raysl.benchmarks.features.store import About, Rows, Store, part_rows_for
from raysl.benchmarks.features.stored_features import Features, StoredSet, read_features
from raysl.components import resolve
from raysl.config.load import load_config
from raysl.errors import ConfigError, DamagedData, RunFailed
from raysl.nn.backbones.backbone import Backbone
from raysl.nn.pooling import RawPixels
from raysl.process.temporary import forget_node_folders
from raysl.storage.folder import Folder

ABOUT = About({"weights": "a"}, num_rows=10, part_rows=4, dtype="fp32")
MATRIX = torch.randn(10, 3, generator=torch.Generator().manual_seed(0))


def fill(store: Store, numbers: list[int]) -> None:
    for number in numbers:
        index = np.arange(number * store.about.part_rows, store.about.num_rows)[: store.about.part_rows]
        store.keep(number, Rows(index, [f"{row}.png" for row in index], index % 3, MATRIX[index].numpy()))


def test_rows_come_back_in_order_whatever_part_was_written_first(tmp_path: Path) -> None:
    store = Store.begin(Folder(str(tmp_path)), ABOUT)
    fill(store, [2, 0, 1])
    found = read_features(str(tmp_path))
    assert (found.num_rows, found.width) == (10, 3)
    assert torch.equal(found.features, MATRIX)
    assert found.index.tolist() == list(range(10))
    assert found.labels.tolist() == [row % 3 for row in range(10)]
    assert found.names[9] == "9.png"
    assert [len(rows.index) for rows in found.batches()] == [4, 4, 2]


def test_more_than_memory_should_hold_is_mapped_and_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(Store.begin(Folder(str(tmp_path)), ABOUT), [0, 1, 2])
    monkeypatch.setattr(stored_features, "MOST_IN_MEMORY", 50)
    mapped = Features(path=str(tmp_path)).features
    assert torch.equal(mapped, MATRIX)
    assert mapped.untyped_storage().nbytes() == 120


def test_what_was_cut_off_is_gone_on_with_and_is_no_result_before(tmp_path: Path) -> None:
    fill(Store.begin(Folder(str(tmp_path)), ABOUT), [0, 2])
    with pytest.raises(ConfigError, match=r"lacks 1 of its 3 parts: .* the same raysl extract goes on"):
        read_features(str(tmp_path))
    (tmp_path / "part-000001.parquet.1234.part").write_bytes(b"half")
    again = Store.begin(Folder(str(tmp_path)), ABOUT)
    assert again.missing() == [1]
    fill(again, [1])
    assert torch.equal(read_features(str(tmp_path)).features, MATRIX)


def test_other_features_take_the_place_of_those_that_are_there(tmp_path: Path) -> None:
    fill(Store.begin(Folder(str(tmp_path)), ABOUT), [0, 1, 2])
    assert Store.begin(Folder(str(tmp_path)), About({"weights": "b"}, 10, 4, "fp32")).missing() == [0, 1, 2]


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 1}', json.dumps({"format": 99, "basis": {}})])
def test_a_note_that_cannot_be_read_is_refused(tmp_path: Path, text: str) -> None:
    fill(Store.begin(Folder(str(tmp_path)), ABOUT), [0, 1, 2])
    (tmp_path / "_about.json").write_text(text)
    with pytest.raises(ConfigError, match=r"_about\.json cannot be read by this raysl .* extract the features again"):
        read_features(str(tmp_path))


def test_half_precision_is_half_the_bytes_and_close(tmp_path: Path) -> None:
    store = Store.begin(Folder(str(tmp_path)), About({}, 10, 4, "fp16"))
    fill(store, [0, 1, 2])
    torch.testing.assert_close(read_features(str(tmp_path)).features, MATRIX, atol=2e-3, rtol=2e-3)
    assert next(store.parts()).features.dtype == np.float16


def test_parts_have_a_bounded_size() -> None:
    assert [part_rows_for(num) for num in (100, 32_000, 1_281_167)] == [256, 500, 1024]


def network() -> Backbone:
    config = load_config("quickstart", ["backbone.width=4", "backbone.num_stages=2"]).backbone
    torch.manual_seed(0)
    backbone: Backbone = resolve("backbone", config.name)(config)
    return backbone.eval()


def test_stages_come_in_the_same_pass_and_are_means_over_all_places() -> None:
    backbone = network()
    names = list(backbone.stage_widths)
    images = torch.randn(5, 3, 32, 32)
    found = StagedNetwork(backbone, [FEATURES, *names])(images)
    torch.testing.assert_close(found[FEATURES], backbone(images))
    for name, stage in backbone.stages(images, names).items():
        torch.testing.assert_close(found[name], stage if stage.ndim == 2 else stage.mean(dim=(2, 3)))
    with pytest.raises(ValueError, match="RawPixels has no stages, so no res2"):
        StagedNetwork(RawPixels(), ["res2"])


def test_tasks_and_a_pool_of_actors_make_the_same_features(tmp_path: Path, shared_ray: None) -> None:
    config = load_config("quickstart", ["data.limit=40"])
    split = resolve("source", "digits")(config.data).required("test")
    backbone = network()
    wanted = Wanted({"trained": backbone, "pixels": RawPixels()}, {"trained": "a", "pixels": "b"}, (FEATURES, "res2"))
    sets = feature_sets(wanted, split, config.data, Folder(str(tmp_path)))
    assert set(sets["trained"].stores) == {FEATURES, "res2"}
    assert set(sets["pixels"].stores) == {FEATURES}
    found = sets["trained"].load((FEATURES, "res2"))
    assert found.labels.tolist() == split.labels_of(np.arange(40)).tolist()
    (tmp_path / "trained" / "part-000000.parquet").unlink()
    before = found.features
    from raysl.benchmarks.features.extraction import _Extraction

    work = _Extraction(split, config.data, 256, {("trained", FEATURES): sets["trained"].stores[FEATURES]})
    networks = nn.ModuleDict({"trained": StagedNetwork(backbone, (FEATURES,))})
    list(over_chunks(work, networks, [0], with_pool=True))
    torch.testing.assert_close(sets["trained"].load((FEATURES,)).features, before)


class _Counted:
    """Work on ten images in chunks of four, which counts the images of each chunk."""

    part_rows = 4

    def read(self, number: int) -> Numpy:
        return {"index": np.arange(4 * number, min(10, 4 * number + 4))}

    def embed(
        self, chunk: dict[str, np.ndarray], networks: nn.ModuleDict, device: torch.device
    ) -> dict[str, np.ndarray]:
        index = chunk["index"]
        return {"index": index, "count": np.full(len(index), len(index))}


@pytest.mark.parametrize("with_pool", [False, True])
def test_a_chunk_stays_whole_beside_a_smaller_one(with_pool: bool, shared_ray: None) -> None:
    found = list(over_chunks(_Counted(), nn.ModuleDict(), [2, 0, 1], with_pool))
    index, count = (np.concatenate([block[name] for block in found]) for name in ("index", "count"))
    assert dict(zip(index.tolist(), count.tolist(), strict=True)) == {**dict.fromkeys(range(8), 4), 8: 2, 9: 2}


class _Damaged:
    """Work on images whose file is damaged."""

    part_rows = 4

    def read(self, number: int) -> Numpy:
        raise DamagedData(f"cannot read row group {number} of a.parquet; restore the file and start again")

    def embed(
        self, chunk: dict[str, np.ndarray], networks: nn.ModuleDict, device: torch.device
    ) -> dict[str, np.ndarray]:
        return chunk


@pytest.mark.cluster
@pytest.mark.parametrize("with_pool", [False, True])
def test_a_damaged_file_is_named_in_one_line(with_pool: bool) -> None:
    with pytest.raises(RunFailed) as failure:
        list(over_chunks(_Damaged(), nn.ModuleDict(), [3], with_pool))
    assert str(failure.value) == "cannot read row group 3 of a.parquet; restore the file and start again"


MEMORY = """
import resource, sys, numpy as np
from raysl.benchmarks.features.store import About, Rows, Store
from raysl.benchmarks.features.stored_features import Features
from raysl.storage.folder import Folder
num, width = int(sys.argv[1]), 512
store = Store.begin(Folder(sys.argv[2]), About({}, num, 1024, "fp32"))
row = np.random.default_rng(0).standard_normal((1024, width), np.float32)
for number in range(store.about.num_parts):
    index = np.arange(number * store.about.part_rows, store.about.num_rows)[: store.about.part_rows]
    store.keep(number, Rows(index, [""] * len(index), index, row[: len(index)]))
seen = sum(len(rows.features) for rows in Features(path=sys.argv[2]).batches())
assert seen == num
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.cluster
def test_writing_and_reading_takes_the_memory_of_a_part(tmp_path: Path) -> None:
    peaks = []
    for num in (2_000, 60_000):
        done = subprocess.run(
            [sys.executable, "-c", MEMORY, str(num), str(tmp_path / str(num))], capture_output=True, check=True
        )
        peaks.append(int(done.stdout) / 1024)
    assert peaks[1] - peaks[0] < 60, "60,000 rows are 117 MiB"


def test_thumbnails_come_back_in_any_order_or_not_at_all(tmp_path: Path) -> None:
    pixels = np.arange(10, dtype=np.uint8)[:, None, None, None] * np.full((8, 8, 3), 20, np.uint8)
    store = Store.begin(Folder(str(tmp_path)), ABOUT)
    for number in (0, 1):
        store.keep_thumbnails(number, encoded(pixels[number * 4 : number * 4 + 4]))
    fill(store, [0, 1, 2])
    index = np.array([7, 0, 3, 7])
    again = decoded(store.thumbnails(index))
    assert np.abs(again.astype(int) - pixels[index]).max() <= 2, "lossy, but the same pictures"
    assert store.thumbnails(np.array([0, 9])) == [], "those of part 2 were not kept"
    assert read_features(str(tmp_path)).num_rows == 10
    assert pq.read_table(str(tmp_path)).num_rows == 10, "thumbnails are no rows"


def test_labels_are_read_of_one_stage_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stores = {stage: Store.begin(Folder(str(tmp_path / stage)), ABOUT) for stage in ("one", "two")}
    for store in stores.values():
        fill(store, [0, 1, 2])
    read, parts = [], Store.parts

    def counted(store: Store, with_features: bool = True) -> Iterator[Rows]:
        read.append((store.folder.uri, with_features))
        return parts(store, with_features)

    monkeypatch.setattr(Store, "parts", counted)
    loaded = StoredSet(stores).load(("one", "two"))
    assert loaded.labels.tolist() == [row % 3 for row in range(10)]
    assert torch.equal(loaded.stages["two"], MATRIX)
    assert [uri for uri, with_features in read if not with_features] == [stores["one"].folder.uri]


def test_tasks_of_a_node_share_one_copy_of_many_features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(stored_features, "MOST_IN_MEMORY", 50)
    store = Store.begin(Folder(str(tmp_path / "features")), ABOUT)
    fill(store, [0, 1, 2])
    alone, *tasks = (StoredSet({FEATURES: store, "res2": store}, token) for token in ("", "same", "same", "same"))
    assert not alone.is_shared
    loaded = [task.load((FEATURES, "res2")) for task in tasks if task.is_shared]
    files = list(tmp_path.rglob("*.bin"))
    assert [path.stat().st_size for path in files] == [120], "of three tasks and two stages with the same features"
    loaded[0].features[0] = 7.0
    for features in loaded[1:]:
        assert torch.equal(features.features, MATRIX), "what another task writes stays its own"
        assert torch.equal(features.labels, alone.load((FEATURES,)).labels)
    forget_node_folders("same")
    assert torch.equal(loaded[1].stages["res2"], MATRIX), "a mapped file outlasts its name"
