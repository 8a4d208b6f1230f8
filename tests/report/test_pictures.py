"""Sheets of images, courses and the projection."""

import math
import re

import numpy as np
import pytest

from raysl.report.contents import Neighbours, ViewSample
from raysl.report.curves import MAX_POINTS, curves_of, draw_curve, running_mean, thinned
from raysl.report.images import (
    CELL,
    FRAME,
    GAP,
    NEUTRAL,
    OTHER,
    SAME,
    WIDE_GAP,
    contact_sheet,
    data_uri,
    fitted,
    neighbour_sheet,
    thumbnail_map,
)
from raysl.report.marks import COLOURS
from raysl.report.projection import FLATTEST, chosen, embedding_map, has_collapsed, level, project


def flat(colour: int, *shape: int) -> np.ndarray:
    """Images of one grey."""
    return np.full((*shape, 3), colour, dtype=np.uint8)


def test_small_images_keep_square_pixels() -> None:
    pixels = np.array([[[255, 0, 0], [0, 255, 0]], [[0, 0, 255], [9, 9, 9]]], dtype=np.uint8)
    large = np.asarray(fitted(pixels, 96))
    assert (large[:48, :48, :3] == pixels[0, 0]).all()
    assert (large[48:, :48, :3] == pixels[1, 0]).all()
    assert len(np.unique(large.reshape(-1, 4), axis=0)) == 4


def test_oblong_images_keep_their_shape_in_a_clear_square() -> None:
    alpha = np.asarray(fitted(flat(7, 100, 200), 96))[..., 3]
    assert alpha.shape == (96, 96)
    assert (alpha[24:72] == 255).all()
    assert (alpha[:24] == 0).all()


def test_views_stand_to_the_right_of_their_original() -> None:
    views = {"global": np.stack([flat(50, 2, 8, 8), flat(60, 2, 8, 8)]), "local": flat(90, 2, 1, 4, 4)}
    sheet = contact_sheet(ViewSample(originals=[flat(10, 16, 16), flat(20, 16, 16)], views=views))
    image = np.asarray(sheet.picture)
    lower = CELL + GAP + CELL // 2
    first, local = CELL + WIDE_GAP, 3 * CELL + GAP + 2 * WIDE_GAP
    assert [image[CELL // 2, left + 3, 0] for left in (0, first, first + CELL + GAP, local)] == [10, 50, 50, 90]
    assert [image[lower, left + 3, 0] for left in (0, first, local)] == [20, 60, 90]
    assert [name for name, _ in sheet.columns] == ["original", "global", "local"]
    assert sum(width for _, width in sheet.columns) == sheet.picture.width


def test_a_group_without_views_takes_no_room() -> None:
    sample = ViewSample(originals=[flat(1, 8, 8)], views={"none": flat(0, 1, 0, 8, 8), "one": flat(9, 1, 1, 8, 8)})
    assert [name for name, _ in contact_sheet(sample).columns] == ["original", "one"]


def test_frames_tell_same_other_and_unknown_classes() -> None:
    sample = Neighbours(
        queries=flat(0, 1, 8, 8),
        query_labels=np.array([4]),
        images=flat(0, 1, 3, 8, 8),
        labels=np.array([[4, 5, -1]]),
        similarities=np.array([[0.9, 0.8, 0.7]], dtype=np.float32),
    )
    image = np.asarray(neighbour_sheet(sample, []).picture)
    width = CELL + 2 * FRAME
    lefts = [width + WIDE_GAP + column * (width + GAP) for column in range(3)]
    assert [tuple(image[1, left + 1, :3].tolist()) for left in lefts] == [SAME, OTHER, NEUTRAL]
    bands = [image[CELL + FRAME :, left : left + CELL // 3, :3] for left in lefts]
    marks = [(band == 255).all(axis=2) for band in bands]
    assert (marks[0] != marks[1]).any(), "the marks differ by shape, not by colour alone"


def test_thumbnails_lie_where_their_points_do() -> None:
    points = np.array([[0.0, 0.0], [10.0, 10.0], [10.0, 0.0]])
    image = np.asarray(thumbnail_map(points, np.stack([flat(value, 4, 4) for value in (50, 100, 150)]), num_cells=2))
    assert [image[y, x, 0] for y, x in ((-10, 10), (10, -10), (-10, -10))] == [50, 100, 150]
    assert image[10, 10, 3] == 0


def test_noise_is_stored_lossily_and_flat_pictures_exactly() -> None:
    noise = np.random.default_rng(0).integers(0, 256, size=(400, 400, 3), dtype=np.uint8)
    assert data_uri(fitted(noise, 400)).startswith("data:image/webp;base64,")
    assert data_uri(fitted(flat(3, 400, 400), 400)).startswith("data:image/png;base64,")


def test_what_is_learned_comes_first_and_times_last_in_their_unit() -> None:
    history = [
        {"step": 20, "zeta": 1, "data_wait": 0.5, "loss": math.nan, "note": "x", "flag": True},
        {"step": 10, "alpha_b": 2.0, "loss": 3.0, "epoch": 1},
        {"loss": 9.0},
    ]
    found = list(curves_of(history))
    assert [course.key for course in found] == ["loss", "alpha_b", "zeta", "data_wait"]
    assert [course.values[-1] for course in found] == [3.0, 2.0, 1.0, 50.0]
    assert found[0].broken == [20]
    assert found[1].quantity.title == "Alpha b"


def test_long_courses_are_thinned_to_means() -> None:
    values = thinned(np.arange(10.0 * MAX_POINTS))
    assert values.tolist() == [10 * part + 4.5 for part in range(MAX_POINTS)]


def test_the_running_mean_shortens_at_both_ends() -> None:
    assert running_mean(np.array([0.0, 3.0, 6.0, 9.0]), 3).tolist() == [1.5, 3.0, 6.0, 7.5]


@pytest.mark.thorough
def test_the_map_keeps_far_clusters_apart_and_repeats() -> None:
    draws = np.random.default_rng(0)
    features = draws.normal(size=(30, 5))
    features[15:, 0] += 9
    points, perplexity = project(features.astype(np.float32))
    assert perplexity == pytest.approx(29 / 3)
    assert np.array_equal(points, project(features.astype(np.float32))[0])
    distances = np.linalg.norm(points[:, None] - points, axis=2) + np.diag(np.full(30, np.inf))
    assert np.mean((distances.argmin(axis=1) < 15) == (np.arange(30) < 15)) > 0.9


def test_a_flat_map_lies_and_fills_its_panel() -> None:
    draws = np.random.default_rng(0)
    flat_points = draws.normal(size=(60, 2)) * (20, 1)
    for angle in (0.0, 0.9, np.pi / 2):
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        points = level(flat_points @ turn)
        width, height = np.ptp(points, axis=0)
        assert height < width / 6
        assert box(embedding_map(points, np.zeros(60, np.int64))) == pytest.approx(FLATTEST, rel=0.01)
    assert box(embedding_map(draws.normal(size=(60, 2)), np.zeros(60, np.int64))) > 0.8


def box(svg: str) -> float:
    """Height of a drawing in its widths."""
    _, _, width, height = map(float, re.findall(r'viewBox="([^"]*)"', svg)[0].split())
    return height / width


def ticks(svg: str) -> list[float]:
    """Numbers on the axes of a drawing."""
    return [float(text.replace("−", "-")) for text in re.findall(r"<text[^>]*>([−\d.]+)</text>", svg)]


def test_a_curve_of_one_point_has_the_axes_of_the_others() -> None:
    history = [{"step": step, "loss": 3.0 - step / 100} for step in range(10, 101, 10)]
    history[4] |= {"knn_k20_top1": 73.5, "delta": -2.0}
    loss, knn, delta = curves_of(history)
    for course, low, high in ((knn, 0, 73.5), (delta, -2.0, 0)):
        numbers = ticks(draw_curve(course, last_step=100))
        assert numbers[-5:] == [0, 25, 50, 75, 100]
        assert all(low <= number <= high for number in numbers[:-5])
    assert ticks(draw_curve(loss))[-5:] == [0, 25, 50, 75, 100]


def test_rows_that_are_not_finite_are_not_mapped() -> None:
    features = np.zeros((2500, 3), dtype=np.float32)
    features[7, 1] = np.nan
    rows = chosen(features)
    assert len(rows) == len(np.unique(rows)) == 1000
    assert 7 not in chosen(features[:12])
    assert has_collapsed(features[:5])
    assert not has_collapsed(np.eye(3, dtype=np.float32))


def test_classes_differ_on_the_map_by_colour_and_then_by_shape() -> None:
    svg = embedding_map(np.random.default_rng(0).normal(size=(4, 2)), np.array([-1, 0, 1, 10]))
    assert re.findall(r'<circle[^>]* fill="([^"]*)"', svg) == ["var(--muted)", COLOURS[0], COLOURS[1]]
    assert re.findall(r'<path[^>]* fill="([^"]*)"', svg) == [COLOURS[0]]
