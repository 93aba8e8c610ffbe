# SPDX-License-Identifier: Apache-2.0
"""Entry of the warden of one provisioner's program: ``PYTHON -I -S leash.py SECONDS GRACE DIRECTORY PROGRAM ARGV…``.

A bare interpreter, as for agents. What it shares with their warden is imported as the package ``process``, so that
nothing but the standard library is loaded.
"""

import os
import sys

if __name__ == "__main__":
    backends = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
    sys.path.append(backends)
    sys.exit(__import__("event.holding", fromlist=["main"]).main(sys.argv[1:]))
