# SPDX-License-Identifier: Apache-2.0
"""Rules of this repository that no ready-made tool knows. ``python -m tests.lints``: each breach with what to do."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SPDX = "SPDX-License-Identifier: Apache-2.0"
NEEDS_SPDX = frozenset({".py", ".sh"})
CLOCKS = frozenset({"time", "random", "uuid", "secrets"})
NOW = frozenset({"now", "utcnow", "today"})
VAGUE = frozenset({"utils", "util", "common", "helper", "helpers", "manager", "misc"})

READS_ITSELF = {
    "src/corral/agent/kernel.py": "reads CLOCK_BOOTTIME for the grant, which a warden in another process compares",
    "src/corral/agent/gitfetch.py": "waits for git in a thread, without an event loop",
    "src/corral/agent/job.py": "the job's halt compares with the event loop's own clock",
    "src/corral/agent/pump.py": "runs in a thread beside the step's pipe; its times are for display",
    "src/corral/agent/source.py": "retries a download in a thread, without an event loop",
    "src/corral/agent/spool.py": "waits on a condition in a thread",
    "src/corral/backends/process/attending.py": "wardens: processes of their own with the standard library alone",
    "src/corral/provisioner/book.py": "the kit for users' programs knows nothing of the rest of Corral",
    "src/corral/provisioner/signature.py": "the kit for users' programs knows nothing of the rest of Corral",
    "src/corral/sim/chaos.py": "a generator made from the seed",
    "src/corral/sim/load.py": "a generator made from the seed",
    "src/corral/sim/run.py": "a generator made from the seed; shows how long the real run took",
    "src/corral/sim/world.py": "a generator made from the seed",
    "src/corral/compile/process.py": "a random name for the channel to a child process",
}
"""Files that read time or randomness themselves, and why they cannot have it injected."""


DRAWN = {"tools/state_diagrams.py": "docs/states.md", "tools/event_reference.py": "docs/reference/events.md"}
"""Which tool writes which document from code."""


def files(root: Path) -> Iterator[Path]:
    """What is, or would be, committed."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=root, capture_output=True
    )
    if listed.returncode == 0:
        names: Iterable[Path] = (root / os.fsdecode(name) for name in listed.stdout.split(b"\0") if name)
    else:
        names = (path for path in root.rglob("*") if not {".venv", "__pycache__"} & set(path.parts))
    yield from sorted(path for path in names if path.is_file() and not path.is_symlink())


def licence(root: Path, path: Path) -> Iterator[str]:
    if path.suffix in NEEDS_SPDX and (text := path.read_text()) and SPDX not in text[:400]:
        yield f"{path.relative_to(root)}:1: no licence line; write `# {SPDX}` first"


def vague_name(root: Path, path: Path) -> Iterator[str]:
    name = path.relative_to(root)
    words = {word for part in name.parts for word in Path(part).stem.lower().replace("-", "_").split("_")}
    if path.suffix == ".py" and (found := words & VAGUE):
        yield f"{name}: {sorted(found)[0]!r} says nothing; name the file after what it holds (docs/glossary.md)"


def clocks(root: Path, path: Path) -> Iterator[str]:
    """Time and randomness are read in ``corral.runtime`` alone."""
    name = path.relative_to(root).as_posix()
    inside = name.startswith("src/corral/") and path.suffix == ".py" and not name.startswith("src/corral/runtime/")
    if not inside or name in READS_ITSELF:
        return
    for node in ast.walk(ast.parse(path.read_text(), name)):
        if (found := _reads(node)) is not None:
            remedy = "take a Clock or Chance of corral.runtime, or list the file in tests/lints.py with the reason"
            yield f"{name}:{getattr(node, 'lineno', 1)}: {found}; {remedy}"


def _reads(node: ast.AST) -> str | None:
    match node:
        case ast.Import(names=names):
            found = sorted(alias.name for alias in names if alias.name.split(".")[0] in CLOCKS)
            return f"imports {found[0]}" if found else None
        case ast.ImportFrom(module=str(module), level=0) if module.split(".")[0] in CLOCKS:
            return f"imports {module}"
        case ast.Call(func=ast.Attribute(value=ast.Name(id="datetime" | "date"), attr=attr)) if attr in NOW:
            return f"calls datetime.{attr}()"
        case ast.Call(func=ast.Attribute(value=ast.Call(func=ast.Attribute(attr="get_running_loop")), attr="time")):
            return "reads the event loop's clock"
        case ast.Attribute(value=ast.Name(id="os"), attr="urandom"):
            return "reads os.urandom"
    return None


def stale_exceptions(root: Path) -> Iterator[str]:
    for name in READS_ITSELF:
        path = root / name
        if not path.exists():
            yield f"tests/lints.py: {name} is listed and not there; take it out"
        elif all(_reads(node) is None for node in ast.walk(ast.parse(path.read_text()))):
            yield f"tests/lints.py: {name} is listed and reads no clock any more; take it out"


def generated(root: Path) -> Iterator[str]:
    """Documents that are drawn from code show the code as it is."""
    environment = {**os.environ, "PYTHONPATH": str(root / "src")}
    for tool, document in DRAWN.items():
        command = [sys.executable, tool, "--check"]
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            yield f"{document}: {done.stderr.strip()}"


def breaches(root: Path) -> Iterator[str]:
    for path in files(root):
        yield from licence(root, path)
        yield from vague_name(root, path)
        yield from clocks(root, path)
    yield from stale_exceptions(root)
    yield from generated(root)


def main() -> int:
    found = list(breaches(ROOT))
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
