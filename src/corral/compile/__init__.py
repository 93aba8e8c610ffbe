# SPDX-License-Identifier: Apache-2.0
"""Author code to lock file, in a child process."""
