import pickle
import sys

import numpy as np
import pytest

from raysl.data.sources.image_files import Paths

TEXTS = ["a/1.png", "", "ä/日本.jpg", "a/1.png", "s3://bucket/x y.png"]


def test_paths_are_a_list_of_texts() -> None:
    paths = Paths(TEXTS)
    assert len(paths) == 5
    assert list(paths) == TEXTS
    assert paths[-1] == TEXTS[-1]
    assert paths.take(np.array([2, 0])) == ["ä/日本.jpg", "a/1.png"]
    assert len(Paths([])) == 0
    with pytest.raises(IndexError):
        paths[5]


def test_names_that_are_no_utf_8_survive() -> None:
    name = b"caf\xe9.png".decode("utf-8", "surrogateescape")
    assert list(Paths([name])) == [name]


def test_paths_are_sent_without_a_copy_and_are_small() -> None:
    texts = [f"n{number:08d}/image_{number}.JPEG" for number in range(1000)]
    paths = Paths(texts)
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(paths, protocol=5, buffer_callback=buffers.append)
    assert len(head) < 1000
    assert sum(buffer.raw().nbytes for buffer in buffers) < sum(map(len, texts)) + 8 * 1001 + 1
    assert sum(map(sys.getsizeof, texts)) > 2 * sum(buffer.raw().nbytes for buffer in buffers)
    assert list(pickle.loads(head, buffers=buffers)) == texts


def test_the_digest_knows_paths_and_their_order() -> None:
    digests = {Paths(texts).digest() for texts in (["ab", "c"], ["a", "bc"], ["c", "ab"], ["ab", "c", ""])}
    assert len(digests) == 4
    assert Paths(["ab", "c"]).digest() in digests


def test_repeats_are_all_but_the_first() -> None:
    assert Paths(TEXTS).repeats().tolist() == [3]
    assert Paths(["x", "y", "x", "y", "x"]).repeats().tolist() == [2, 3, 4]
    assert Paths(["x", "y"]).repeats().tolist() == []
