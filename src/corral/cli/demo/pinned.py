# SPDX-License-Identifier: Apache-2.0
"""The project that ``corral demo`` tests by default: nobody here wrote it, and its bytes are always the same."""

PACKAGE = "more-itertools"
VERSION = "11.2.1"
SHA256 = "cbf08fd0af284dc69718b9b76a8e6203df624d70209ea511e4219d350c856f63"
"""Of the source distribution."""
