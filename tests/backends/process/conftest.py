# SPDX-License-Identifier: Apache-2.0
"""What the code under test should have killed and did not, because a guard was broken, does not outlive its test."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from corral.backends.process import procfs, strays
from tests.backends.process.rigs import RUN


@pytest.fixture(autouse=True)
def no_process_outlives_its_test() -> Iterator[None]:
    yield
    for pid in procfs.pids():
        if any(marker.endswith(RUN) for marker in strays.markers_of(pid)):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
