# SPDX-License-Identifier: Apache-2.0
"""What the database says, in the words of ``corral.model.errors``: a library's exception never crosses an adapter.

What nobody foresaw counts as "cannot be used now": nothing was written, and nobody is told that it was.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator

from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from corral.model.errors import CorralError, StoreMisconfigured, StoreUnavailable

DEADLOCK = ("40001", "40P01")
"""SQLSTATEs of a transaction that was chosen as the victim: run again, it may pass."""


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Library exceptions become ours: what may pass is temporary, a broken file is permanent."""
    try:
        yield
    except DBAPIError as error:
        raise _ours(error) from error
    except PoolTimeout as error:
        raise StoreUnavailable("all connections to the database are in use", retry_after=1) from error
    except sqlite3.Error as error:
        raise _sqlite(error) from error


def run_again(error: DBAPIError) -> bool:
    """True where the server rolled the transaction back for another's sake."""
    return _state(error) in DEADLOCK


def as_ours(error: BaseException) -> BaseException:
    if isinstance(error, DBAPIError) and isinstance(error.orig, sqlite3.Error):
        ours = _sqlite(error.orig)
        ours.__cause__ = error
        return ours
    return error


def _ours(error: DBAPIError) -> CorralError:
    if isinstance(error.orig, sqlite3.Error):
        return _sqlite(error.orig)
    state = _state(error)
    return _postgres(error, state) if state or isinstance(error, OperationalError) else _sqlite(error)


def _state(error: DBAPIError) -> str:
    return getattr(error.orig, "sqlstate", None) or ""


def _sqlite(error: BaseException) -> CorralError:
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


def _postgres(error: DBAPIError, state: str) -> CorralError:
    """By SQLSTATE; without one it was never reached, or the connection broke."""
    first = str(error.orig).strip().splitlines()[0] if str(error.orig).strip() else "no reason given"
    match state[:2]:
        case "23":
            return CorralError("a database constraint refused a write", internal=str(error.orig))
        case "28" | "3D":
            return StoreMisconfigured(f"the database refuses us: {first}")
        case "42" if state == "42501":
            return StoreMisconfigured(f"the database role lacks a right: {first}")
        case "53":
            return StoreUnavailable(f"the database has no room: {first}", retry_after=5)
        case "25" if state == "25006":
            return StoreUnavailable("the database is read-only: a standby, or put so by its operator", retry_after=5)
        case "25" if state == "25P03":
            return StoreUnavailable("the database ended a transaction that stood still for too long", retry_after=1)
        case "55" if state == "55P03":
            return StoreUnavailable("the database could not lock a row in time", retry_after=1)
        case "57" if state == "57014":
            return StoreUnavailable("the database took too long over a statement", retry_after=1)
        case "" | "08" | "57":
            return StoreUnavailable(f"the database cannot be reached: {first}", retry_after=1)
    return StoreUnavailable("the database refused a statement", internal=str(error.orig), retry_after=1)
