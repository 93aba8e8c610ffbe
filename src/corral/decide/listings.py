# SPDX-License-Identifier: Apache-2.0
"""Is what a provisioner said a listing?"""

from __future__ import annotations

import msgspec

from corral.model.events import Listing


def read_listing(body: bytes) -> Listing | None:
    """The listing in an answer's body, or None."""
    try:
        return msgspec.json.decode(body, type=Listing)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
