# SPDX-License-Identifier: Apache-2.0
"""Compiles the workflows of a work tree, writes their lock, and tells whether a committed lock still says the same."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from corral.compile.collected import Collected, Diagnose, collect
from corral.compile.guards import guard
from corral.compile.pinpoint import pinpoint
from corral.model.errors import Fault, Invalid, NotFound
from corral.model.spec import Lock, WorkflowSpec
from corral.runtime.clock import Clock, SystemClock
from corral.workflow.lock import LOCK_LIMIT, LOCK_PATH, lock_bytes, make_lock, read_lock
from corral.workflow.validate import validate
from corral.workflow.words import RECOMPILE

TIMEOUT = 30.0
"""Seconds to load all workflow files of a tree; loading a normal one takes a few milliseconds."""
WORKFLOWS = ".corral/workflows"
_LARGE = "keep data out of workflows: read it in a step"


@dataclass(frozen=True, kw_only=True)
class Drift:
    """How a committed lock differs from what its workflows say now. ``faults`` is empty when it does not.

    ``changed``: files whose content differs, that are new, or that are gone.
    """

    lock: Lock
    changed: tuple[str, ...] = ()
    faults: tuple[Fault, ...] = ()


def find_tree(path: Path) -> Path:
    """The work tree that ``path`` lies in: the nearest directory upwards with ``.corral/workflows``.

    :raises NotFound: there is none.
    """
    start = path.resolve()
    if not start.is_dir():
        raise NotFound(f"{path} is no directory" if start.exists() else f"there is no directory {path}")
    for directory in (start, *start.parents):
        if (directory / WORKFLOWS).is_dir():
            return directory
    raise NotFound(f"there are no workflows in {start} or above it: make {WORKFLOWS}/ci.py")


def compile_tree(
    path: Path, timeout: float = TIMEOUT, *, clock: Clock | None = None, diagnose: Diagnose = lambda text: None
) -> Lock:
    """The lock of the workflows in the work tree ``path``, whose author's code runs in a child process.

    :param timeout: seconds for loading all files.
    :param diagnose: is given what the author's code printed.
    :raises NotFound: ``path`` has no ``.corral/workflows``.
    :raises Invalid: with every fault of every file, in order of place.
    """
    tree = path.resolve()
    if not (tree / WORKFLOWS).is_dir():
        raise NotFound(f"there are no workflows in {tree}: make {WORKFLOWS}/ci.py")
    found = collect(tree, timeout=timeout, clock=clock or SystemClock(), diagnose=diagnose)
    guarded = [guard(workflow) for workflow in found.workflows]
    faults = _faults(found) or list(validate(guarded))
    if faults:
        raise Invalid(f"workflows in {tree}", pinpoint(tree, faults))
    return _sealed(tree, guarded, found.files)


def _sealed(tree: Path, workflows: Sequence[WorkflowSpec], files: Mapping[str, str]) -> Lock:
    """The lock, when its reader would take it."""
    try:
        lock = make_lock(workflows, files)
        fits = len(lock_bytes(lock)) <= LOCK_LIMIT
    except UnicodeEncodeError:
        fault = Fault(message="a text or a file's name holds half of a surrogate pair", remedy="remove it")
        raise Invalid(f"workflows in {tree}", [fault]) from None
    if not fits:
        message = f"the workflows make a lock file above {LOCK_LIMIT} bytes"
        raise Invalid(f"workflows in {tree}", [Fault(file=LOCK_PATH, message=message, remedy=_LARGE)])
    return lock


def _faults(found: Collected) -> list[Fault]:
    faults = [*found.faults, *validate(found.workflows, incomplete=found.incomplete)]
    if not faults and not found.workflows:
        remedy = 'write one: ci = Workflow("ci")'
        faults.append(Fault(file=WORKFLOWS, message="no file here defines a workflow", remedy=remedy))
    return faults


def write_lock(lock: Lock, path: Path) -> bool:
    """Write ``lock`` to the file ``path`` at once, and only if its content changes; says whether it did.

    :raises Invalid: the file cannot be written; the old one is as it was.
    """
    data = lock_bytes(lock)
    with suppress(OSError):
        if path.read_bytes() == data:
            return False
    try:
        _replace(path, data)
    except OSError as error:
        fault = Fault(file=str(path), message=f"cannot be written: {error.strerror}")
        raise Invalid("lock file", [fault]) from error
    return True


def _replace(path: Path, data: bytes) -> None:
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(_mode(path))
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _mode(path: Path) -> int:
    """That of the file before, else what a new file gets: a temporary file is private, a lock file is not."""
    try:
        return path.stat().st_mode & 0o777
    except FileNotFoundError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask


def check_tree(path: Path, timeout: float = TIMEOUT, *, diagnose: Diagnose = lambda text: None) -> Drift:
    """Compile the tree and compare with the lock file in it.

    :raises NotFound, Invalid: as :func:`compile_tree`; a lock file that is missing or broken is drift.
    """
    lock = compile_tree(path, timeout, diagnose=diagnose)
    committed = path.resolve() / LOCK_PATH
    try:
        old = read_lock(committed, name=LOCK_PATH)
    except NotFound:
        return Drift(lock=lock, faults=(Fault(file=LOCK_PATH, message="the lock file is missing", remedy=RECOMPILE),))
    except Invalid as error:
        return Drift(lock=lock, faults=error.faults)
    if old == lock and committed.read_bytes() == lock_bytes(lock):
        return Drift(lock=lock)
    changed = tuple(sorted(dict(old.files.items() ^ lock.files.items())))
    return Drift(lock=lock, changed=changed, faults=tuple(_drifted(old, lock, changed)))


def _drifted(old: Lock, new: Lock, changed: Sequence[str]) -> Iterable[Fault]:
    for file in changed:
        if file not in new.files:
            what = "is in the lock file but no workflow uses it any more"
        elif file not in old.files:
            what = "is used by a workflow and not in the lock file"
        else:
            what = "changed after the lock file was made"
        yield Fault(file=file, message=what, remedy=RECOMPILE)
    if not changed:
        message = "the same files compile to something else now: by another Corral, or from what is not in a file"
        yield Fault(file=LOCK_PATH, message=message, remedy=RECOMPILE)
