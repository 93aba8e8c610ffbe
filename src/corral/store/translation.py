# SPDX-License-Identifier: Apache-2.0
"""What SQLite says, in the words of ``corral.model.errors``: a library's exception never crosses an adapter."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator

from sqlalchemy.exc import DBAPIError

from corral.model.errors import CorralError, StoreMisconfigured, StoreUnavailable


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Library exceptions become ours: what may pass is temporary, a broken file is permanent."""
    try:
        yield
    except DBAPIError as error:
        raise _translate(error.orig if isinstance(error.orig, sqlite3.Error) else error) from error
    except sqlite3.Error as error:
        raise _translate(error) from error


def _translate(error: BaseException) -> CorralError:
    code = getattr(error, "sqlite_errorname", "") or ""
    if code.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return StoreMisconfigured(f"the database file is damaged: {error}; restore a copy")
    if code.startswith("SQLITE_READONLY"):
        return StoreUnavailable(f"the database is read-only: {error}; make its directory writable", retry_after=5)
    if code.startswith(("SQLITE_FULL", "SQLITE_IOERR")):
        return StoreUnavailable(f"the disk cannot take more: {error}; free some space", retry_after=5)
    if code.startswith(("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_CANTOPEN")):
        return StoreUnavailable(f"the database cannot be used right now: {error}", retry_after=1)
    if code.startswith("SQLITE_CONSTRAINT"):
        return CorralError("a database constraint refused a write", internal=str(error))
    return StoreUnavailable("the database refused a statement", internal=str(error), retry_after=1)


def as_ours(error: BaseException) -> BaseException:
    if isinstance(error, DBAPIError) and isinstance(error.orig, sqlite3.Error):
        translated = _translate(error.orig)
        translated.__cause__ = error
        return translated
    return error
