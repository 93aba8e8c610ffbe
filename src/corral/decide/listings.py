# SPDX-License-Identifier: Apache-2.0
"""Is what a provisioner said a listing?"""

from __future__ import annotations

import msgspec

from corral.model.events import Listing


def read_listing(body: bytes) -> Listing | None:
    """The listing in an answer's body, or None.

    An object that names neither ``instances`` nor ``unsupported`` is none: ``{"ok": true}`` is not the news that every
    instance is gone.
    """
    try:
        said = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        listing = msgspec.json.decode(body, type=Listing)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    return listing if "instances" in said or listing.unsupported else None
