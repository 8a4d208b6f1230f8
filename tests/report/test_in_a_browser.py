"""The picture of similar patches in a real browser."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raysl.report.contents import PatchNetwork, PatchSample
from raysl.report.run_page import page
from tests.leaderboard.page.test_in_a_browser import BROWSER, DRIVER
from tests.leaderboard.page.test_in_a_browser import browser as browser  # the fixture
from tests.report.run import example

webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium, of the extra dev")
support = pytest.importorskip("selenium.webdriver.support.ui")
pytestmark = pytest.mark.skipif(
    BROWSER is None or DRIVER is None, reason="needs a browser: apt-get install chromium chromium-driver"
)
NUM, SIDE = 3, 4


def network(title: str, codes: np.ndarray) -> PatchNetwork:
    colors = np.zeros((NUM, SIDE, SIDE, 3), np.uint8)
    return PatchNetwork(
        title=title,
        colors=colors,
        foreground=colors,
        codes=codes,
        num_features=codes.shape[3],
        attention=np.ones((NUM, 6, SIDE, SIDE), np.float32),
    )


@pytest.mark.parametrize("width", [1200, 420])
def test_a_click_shows_the_nearest_patches_and_arrow_keys_move_on(browser: Any, tmp_path: Path, width: int) -> None:
    draws = np.random.default_rng(0)
    codes = draws.normal(size=(NUM, SIDE, SIDE, 5)).astype(np.float32)
    codes /= np.linalg.norm(codes, axis=3, keepdims=True)
    images = draws.integers(0, 256, size=(NUM, 16, 16, 3), dtype=np.uint8)
    networks = [network("before training", codes[::-1].copy()), network("after training", codes)]
    sample = PatchSample(images=images, networks=networks, stage="tokens")
    path = tmp_path / "report.html"
    path.write_text(page(example(patches=sample)))
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(path.as_uri())
    wait = support.WebDriverWait(browser, 30)
    wait.until(lambda driver: driver.find_elements("css selector", "#similar .near li"))
    (chosen,) = browser.find_elements("css selector", "#similar canvas[tabindex]")
    assert chosen.get_attribute("aria-label") == "image 1, patch at row 3, column 3"

    maps = browser.find_elements("css selector", "#similar .maps")[1]
    second = maps.find_elements("css selector", "canvas")[1]
    half, cell = second.size["width"] / 2, second.size["width"] / SIDE
    action = webdriver.ActionChains(browser)
    action.move_to_element_with_offset(second, int(3.5 * cell - half), int(0.5 * cell - half)).click().perform()
    assert chosen.get_attribute("aria-label") == "image 2, patch at row 1, column 4"
    rows = codes.reshape(-1, 5)
    cosines = rows @ codes[1, 0, 3]
    order = [index for index in np.argsort(-cosines) if index != SIDE**2 + 3][:8]
    near = browser.find_elements("css selector", "#similar .near")[1].find_elements("css selector", "li")
    assert [float(item.text) for item in near] == pytest.approx(cosines[order].tolist(), abs=0.016)
    names = [item.find_element("css selector", "canvas").get_attribute("aria-label") for item in near]
    image, row, column = np.unravel_index(order[0], (NUM, SIDE, SIDE))
    assert names[0] == f"image {image + 1}, row {row + 1}, column {column + 1}"

    chosen.send_keys(webdriver.Keys.ARROW_LEFT, webdriver.Keys.ARROW_DOWN)
    assert chosen.get_attribute("aria-label") == "image 2, patch at row 2, column 3"
    chosen.send_keys(*[webdriver.Keys.ARROW_UP] * 9)
    assert chosen.get_attribute("aria-label") == "image 2, patch at row 1, column 3", "it stays inside the image"
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert browser.get_log("browser") == []
