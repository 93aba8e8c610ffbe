# SPDX-License-Identifier: Apache-2.0
"""Draw ``docs/states.md`` from the state machines.

Without arguments the text is printed; with ``--write`` the file is written; with ``--check`` exit 1 when it differs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

from corral.model.machine import Machine
from corral.model.states import MACHINES

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "states.md"
COMMAND = "python tools/state_diagrams.py --write"
_HEAD = f"""<!-- SPDX-License-Identifier: Apache-2.0 -->
<!-- Generated from src/corral/model/states.py by `{COMMAND}`: change that, not this. -->
# States

Each machine is total: a pair of state and event that has no arrow is either late or repeated news, which changes
nothing, or a bug in the caller, which is refused. Final states ignore everything that has no arrow out of them.
"""


def drawn() -> str:
    """The whole document."""
    return _HEAD + "".join(f"\n{_section(machine)}" for machine in MACHINES)


def _section(machine: Machine[Any, Any]) -> str:
    arrows = [f"    {_id(a)} --> {_id(b)}: {event}" for (a, event), b in machine.transitions.items()]
    ends = [f"    {_id(state)} --> [*]" for state in machine.states if state in machine.terminal]
    diagram = "\n".join(["stateDiagram-v2", f"    [*] --> {_id(machine.initial)}", *arrows, *ends])
    return f"## {machine.name}\n\n```mermaid\n{diagram}\n```\n"


def _id(state: StrEnum) -> str:
    return str(state).replace("-", "_")


def main(arguments: Sequence[str]) -> int:
    text = drawn()
    if "--write" in arguments:
        DOCUMENT.write_text(text)
        return 0
    if "--check" in arguments:
        if DOCUMENT.exists() and DOCUMENT.read_text() == text:
            return 0
        print(f"{DOCUMENT.name} does not show the machines as they are; run: {COMMAND}", file=sys.stderr)
        return 1
    print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
