# SPDX-License-Identifier: Apache-2.0
"""Entry of the warden: ``PYTHON -I -S warden.py INSTANCE_DIR [options] -- AGENT COMMAND``.

A bare interpreter (no site, no environment variables) starts in a few milliseconds and stays small. The modules
beside this file are imported as the package ``process`` so that their compiled form is cached; a script's own
text is compiled anew at every start, hence nothing else lives here.
"""

import os
import sys

if __name__ == "__main__":
    sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120
    sys.exit(__import__("process.guard", fromlist=["main"]).main(sys.argv[1:]))
