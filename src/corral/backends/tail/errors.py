# SPDX-License-Identifier: Apache-2.0
"""Why a tail ends early."""

from __future__ import annotations

from corral.model.errors import Refused, TemporaryError


class TailRefused(Refused):
    """What stands at the path is not a regular file, or may not be read: somebody has to look."""

    code = "tail_refused"


class TailUnavailable(TemporaryError):
    """The system failed to open or read the file while the tail was told to stop: lines may be missing."""

    code = "tail_unavailable"
