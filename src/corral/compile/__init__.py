# SPDX-License-Identifier: Apache-2.0
"""Author code to lock file, in a child process."""

from corral.compile.tree import Drift, check_tree, compile_tree, find_tree, write_lock

__all__ = ["Drift", "check_tree", "compile_tree", "find_tree", "write_lock"]
