"""Ray, once for the tests of this folder that need it."""

from collections.abc import Iterator

import pytest
import ray


@pytest.fixture(scope="package")
def ray_here() -> Iterator[None]:
    """Whatever starts Ray meanwhile finds it shut down behind the last of these tests."""
    yield
    ray.shutdown()
