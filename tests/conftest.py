# SPDX-License-Identifier: Apache-2.0
"""Settings for the whole suite: the same examples every time, so that a red test is red for everybody."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings

settings.register_profile(
    "ci", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("raw", settings.get_profile("ci"), phases=(Phase.explicit, Phase.generate))
settings.register_profile("explore", settings.get_profile("ci"), derandomize=False, max_examples=2000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
