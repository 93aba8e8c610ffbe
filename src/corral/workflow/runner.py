# SPDX-License-Identifier: Apache-2.0
"""The script that an agent starts for a function step: ``PYTHON -I runner.py FILE QUALNAME``.

It makes ``corral.workflow`` importable from the directory it lies in, and nothing else of Corral; it needs only the
standard library, so PYTHON is any interpreter from 3.9. An agent finds the script without importing this package:
``importlib.util.find_spec("corral.workflow").submodule_search_locations[0]`` + ``/runner.py``.

Contract
    argv          ``FILE`` the author's file, absolute, below the work directory; ``QUALNAME`` the function's
                  qualified name in it (``StepSpec.function``). The agent has compared FILE's hash with the lock's.
    directory     where the step runs; it is not changed and not put on ``sys.path``.
    environment   the step's. ``CORRAL_CONTEXT``: path of a JSON file ``{"matrix": {}, "needs": {}, "run": {},
                  "event": {}, "env": {}}``, each key optional, ``needs`` as ``NeedResult`` is written in JSON; without
                  the variable the context is empty. ``env`` is laid over the process's environment for ``ctx.env``.
                  ``CORRAL_OUTPUT``: path of the file to which outputs are appended as soon as they are set.
    stdout/err    the function's own. A traceback shows the author's frames only.
    exit code     0: the function returned. 1: it raised, or returned something that is no output. The code given to
                  ``sys.exit``. 130: interrupted. 2: FILE, QUALNAME or the context could not be loaded (the reason is
                  on standard error); the function did not run.

``runner.py --collect …`` is how compiling reads workflows (``collector.py``).
"""

from __future__ import annotations

import importlib.util
import os
import sys
import types


def provide_language() -> None:
    """Put the package around this script into ``sys.modules`` as ``corral.workflow``, under an otherwise empty
    ``corral``."""
    here = os.path.dirname(os.path.abspath(__file__))
    corral = types.ModuleType("corral")
    corral.__path__ = []
    sys.modules["corral"] = corral
    spec = importlib.util.spec_from_file_location(
        "corral.workflow", os.path.join(here, "__init__.py"), submodule_search_locations=[here]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"corral.workflow is not in {here}")
    package = importlib.util.module_from_spec(spec)
    sys.modules["corral.workflow"] = package
    corral.workflow = package  # type: ignore[attr-defined]
    spec.loader.exec_module(package)


def main(argv: list[str]) -> int:
    provide_language()
    if argv[:1] == ["--collect"]:
        from corral.workflow.collector import collect

        return collect(argv[1:])
    from corral.workflow.invocation import invoke

    return invoke(argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
