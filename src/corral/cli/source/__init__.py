# SPDX-License-Identifier: Apache-2.0
"""A git work tree as a source archive: uncommitted changes included, history shallow, nothing private."""

from corral.cli.source.archive import SOURCE_LIMIT, Source, snapshot

__all__ = ["SOURCE_LIMIT", "Source", "snapshot"]
