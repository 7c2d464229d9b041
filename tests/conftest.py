"""Settings and fixtures of every test.

JAX is configured through the environment, before it is imported: the package itself never touches its
configuration, and the tests must not hide it if it did.
"""

import gc
import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["JAX_NUMPY_RANK_PROMOTION"] = "raise"  # shapes are broadcast only on purpose
os.environ["JAX_NUMPY_DTYPE_PROMOTION"] = "standard"
os.environ["MPLBACKEND"] = "Agg"

from collections import Counter
from pathlib import Path

import jax
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]


def pytest_collection_modifyitems(items):
    """Mark all but the first n cases of a test marked thorough(cases=n) as slow as well."""
    seen = Counter()
    for item in items:
        mark, function = item.get_closest_marker("thorough"), item.nodeid.split("[")[0]
        seen[function] += 1
        if mark and seen[function] > mark.kwargs.get("cases", np.inf):
            item.add_marker("slow")


@pytest.fixture(scope="module", autouse=True)
def forget_compiled_programs():
    """Release compiled programs before a process has more memory maps than the kernel allows (65 530)."""
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > 25_000:
        jax.clear_caches()
        gc.collect()


@pytest.fixture
def x64():
    """Run the test with jax's float64 mode on (it is off by default, as for most users)."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def loose_shapes():
    """Allow rank promotion during a test that runs another package's code (NeMoS needs it)."""
    with jax.numpy_rank_promotion("allow"):
        yield


@pytest.fixture
def rng():
    """Give the test a NumPy generator with a fixed seed."""
    return np.random.default_rng(20260101)


@pytest.fixture(scope="session")
def shared_data():
    """Folder of real recordings next to the checkout; the test is skipped if there is none."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("no ../shared/data next to the checkout: real recordings are not shipped with the package")
    return folder
