"""Use one BLAS thread, as measuring does: several would compete for the cores."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from threadpoolctl import threadpool_limits


@pytest.fixture(scope="package", autouse=True)
def one_blas_thread() -> Iterator[None]:
    with threadpool_limits(1, user_api="blas"):
        yield
