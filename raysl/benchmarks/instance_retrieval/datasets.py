"""Datasets of instance retrieval, in their authors' layouts."""

import io
import posixpath
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from scipy.io import loadmat

from raysl.benchmarks.instance_retrieval.truth import (
    ImageFiles,
    Images,
    InstanceSet,
    Task,
    box_of,
    folder_of,
    places,
    read_plain,
)
from raysl.data.sources.listing import list_folders
from raysl.errors import ConfigError
from raysl.hashing import Int64s
from raysl.storage.folder import Folder
from raysl.storage.whole import read_whole

Dataset = Literal["roxford5k", "rparis6k", "oxford5k", "paris6k", "instre", "copydays"]
REVISITED = ("roxford5k", "rparis6k")
LEVELS = {
    "easy": (("easy",), ("junk", "hard")),
    "medium": (("easy", "hard"), ("junk",)),
    "hard": (("hard",), ("junk", "easy")),
}
"""Right and ignored images at each level of the revisited benchmark."""
ORIGINAL = "original"
DISTRACTOR = "distractor"
VALIDATION_SHARE = 0.1
VALIDATION_SEED = 123


def task_names(dataset: Dataset, query_splits: Sequence[str]) -> tuple[str, ...]:
    """Return the names of a dataset's tasks without reading it."""
    if dataset in REVISITED:
        return tuple(LEVELS)
    if dataset == "copydays":
        return tuple(dict.fromkeys(split.strip("/").replace("/", "_") for split in query_splits))
    return ("", "validation") if dataset == "instre" else ("",)


def load(dataset: Dataset, path: str | None, query_splits: Sequence[str] = ("strong",)) -> InstanceSet:
    """Read a dataset.

    Args:
        query_splits: folders of Copydays whose images are the queries.
    """
    folder = folder_of(path, dataset)
    if dataset in REVISITED:
        return revisited(folder, dataset)
    if dataset == "instre":
        return instre(folder)
    if dataset == "copydays":
        return copydays(folder, query_splits)
    return buildings(folder)


def revisited(folder: Folder, dataset: str) -> InstanceSet:
    """Revisited Oxford and Paris (Radenovic et al. 2018, arXiv 1803.11285): `gnd_<dataset>.pkl` and `jpg/`.

    They may lie in a folder of the dataset's name inside.
    """
    name = f"gnd_{dataset}.pkl"
    if not folder.exists(name) and folder.exists(f"{dataset}/{name}"):
        folder = folder.child(dataset)
    if not folder.exists(name):
        raise ConfigError(f"no {name} in {folder.uri!r}; give path= the folder of {dataset}, with {name} and jpg/")
    where = folder.uri_of(name)
    truth = _checked(read_plain(read_whole(where), where), where)
    files = ImageFiles(folder.uri_of("jpg") if folder.exists("jpg") else folder.uri)
    names = [str(image) for image in truth["imlist"]]
    answers = [
        {kind: places(answer[kind], len(names), f"{where}, query {n}, {kind}") for kind in ("easy", "hard", "junk")}
        for n, answer in enumerate(truth["gnd"])
    ]
    tasks = []
    for level, parts in LEVELS.items():
        right, ignored = (
            tuple(np.concatenate([answer[kind] for kind in kinds]) for answer in answers) for kinds in parts
        )
        tasks.append(Task(level, np.arange(len(answers)), right, ignored))
    return InstanceSet(Images(files.uri, files.find(names, where)), _queries(files, truth, where), tuple(tasks))


def instre(folder: Folder) -> InstanceSet:
    """INSTRE (Wang and Jiang 2015) as in Iscen et al. 2017 (arXiv 1611.05113): `gnd_instre.mat` and images.

    The task `validation` has a tenth of the queries, drawn with seed 123.
    """
    name = "gnd_instre.mat"
    if not folder.exists(name):
        raise ConfigError(f"no {name} in {folder.uri!r}; give path= the folder of INSTRE, with {name} and its images")
    where = folder.uri_of(name)
    try:
        read = loadmat(io.BytesIO(read_whole(where)), simplify_cells=True)
    except Exception as error:
        raise ConfigError(f"cannot read {where!r}: {error}; give the file as its authors publish it") from error
    truth = _checked({key: np.atleast_1d(value) for key, value in read.items() if key in _KEYS}, where, ("ok",))
    files = ImageFiles(folder.uri)
    names = [str(image) for image in truth["imlist"]]
    right = tuple(  # Matlab counts from 1
        places(answer["ok"], len(names), f"{where}, query {n}, ok", first=1) for n, answer in enumerate(truth["gnd"])
    )
    num_drawn = max(1, round(VALIDATION_SHARE * len(right)))
    # the legacy generator, whose draws stay the same in all releases of numpy
    drawn = np.sort(np.random.RandomState(VALIDATION_SEED).permutation(len(right))[:num_drawn])
    tasks = _task("", np.arange(len(right)), right), _task("validation", drawn, tuple(right[n] for n in drawn))
    return InstanceSet(Images(files.uri, files.find(names, where)), _queries(files, truth, where), tasks)


def buildings(folder: Folder) -> InstanceSet:
    """Oxford Buildings and Paris (Philbin et al. 2007, 2008): text files `<name>_query.txt`, `_good`, `_ok`, `_junk`.

    They lie in the folder itself or one inside; all images below are searched, the queries' own among them.
    """
    marks = "_query.txt"
    candidates = (folder, *(folder.child(name) for name in sorted(list_folders(folder.uri))))
    lists = next((inner for inner in candidates if any(name.endswith(marks) for name in inner.names())), None)
    if lists is None:
        raise ConfigError(f"no *{marks} in {folder.uri!r} or a folder inside; give path= the images and ground truth")
    files = ImageFiles(folder.uri)
    number_of = {path: number for number, path in enumerate(files.paths)}
    names = [name.removesuffix(marks) for name in lists.names() if name.endswith(marks)]
    paths: list[str] = []
    boxes, right, ignored = [], [], []
    for name in names:
        where = lists.uri_of(f"{name}{marks}")
        query = lists.read(f"{name}{marks}").decode().split()
        if len(query) != 5:
            raise ConfigError(
                f"{where}: {' '.join(query)[:60]!r} is not an image and a box of 4 numbers; fetch it anew"
            )
        paths += files.find([query[0].removeprefix("oxc1_")], where)
        boxes.append(box_of(query[1:], where))
        good, ok, junk = (
            files.find(lists.read(f"{name}_{kind}.txt").decode().split(), lists.uri_of(f"{name}_{kind}.txt"))
            for kind in ("good", "ok", "junk")
        )
        right.append(np.array([number_of[path] for path in (*good, *ok)], np.int64))
        ignored.append(np.array([number_of[path] for path in junk], np.int64))
    task = Task("", np.arange(len(names)), tuple(right), tuple(ignored))
    return InstanceSet(Images(files.uri, tuple(files.paths)), Images(files.uri, tuple(paths), tuple(boxes)), (task,))


def copydays(folder: Folder, query_splits: Sequence[str]) -> InstanceSet:
    """Copydays (Douze et al. 2009): `original/`, folders of copies such as `strong/`, and any with distractors.

    The database has the originals and the images of folders whose names hold `distractor`. A copy is of the
    original whose number, over 100 and rounded down, is the same; a distractor is of none.
    """
    files = ImageFiles(folder.uri)
    originals = [path for path in files.paths if path.startswith(f"{ORIGINAL}/")]
    distractors = [path for path in files.paths if DISTRACTOR in posixpath.dirname(path)]
    if not originals:
        raise ConfigError(f"no images in {folder.uri_of(ORIGINAL)!r}; give path= the folder of Copydays")
    # in the order of the database; -1 for distractors, which are right for no query
    blocks = np.array([_block(path, files.uri) for path in originals] + [-1] * len(distractors))
    queries: list[str] = []
    tasks = []
    for split, name in zip(query_splits, task_names("copydays", query_splits), strict=True):
        split_paths = [path for path in files.paths if path.startswith(f"{split.strip('/')}/")]
        if not split_paths:
            raise ConfigError(f"no images in {folder.uri_of(split)!r}; set query_splits= to folders that there are")
        right = tuple(np.flatnonzero(blocks == _block(path, files.uri)) for path in split_paths)
        tasks.append(_task(name, np.arange(len(queries), len(queries) + len(split_paths)), right))
        queries += split_paths
    return InstanceSet(Images(files.uri, (*originals, *distractors)), Images(files.uri, tuple(queries)), tuple(tasks))


_KEYS = ("imlist", "qimlist", "gnd")


def _checked(truth: Any, where: str, kinds: Sequence[str] = ("easy", "hard", "junk")) -> Mapping[str, Any]:
    if not isinstance(truth, Mapping) or any(key not in truth for key in _KEYS):
        raise ConfigError(f"{where}: no ground truth; it needs {', '.join(_KEYS)}")
    answers, names = truth["gnd"], truth["qimlist"]
    if len(answers) != len(names) or len(names) == 0:
        raise ConfigError(f"{where}: {len(names)} queries and {len(answers)} answers; fetch it anew")
    for number, answer in enumerate(answers):
        if not isinstance(answer, Mapping) or any(kind not in answer for kind in (*kinds, "bbx")):
            raise ConfigError(f"{where}: query {number} lacks one of {', '.join((*kinds, 'bbx'))}; fetch it anew")
    return truth


def _queries(files: ImageFiles, truth: Mapping[str, Any], where: str) -> Images:
    names = [str(image) for image in truth["qimlist"]]
    boxes = [box_of(answer["bbx"], f"{where}, query {n}") for n, answer in enumerate(truth["gnd"])]
    return Images(files.uri, files.find(names, where), tuple(boxes))


def _task(name: str, queries: Int64s, right: tuple[Int64s, ...]) -> Task:
    return Task(name, queries, right, tuple(np.empty(0, np.int64) for _ in right))


def _block(path: str, uri: str) -> int:
    """Return the number of the original that an image of Copydays is a copy of."""
    stem = posixpath.basename(path).rpartition(".")[0]
    if not stem.isascii() or not stem.isdigit():
        raise ConfigError(f"{path!r} in {uri!r} is not a number; images of Copydays have names like 200001.jpg")
    return int(stem) // 100
