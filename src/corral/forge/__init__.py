# SPDX-License-Identifier: Apache-2.0
"""Code hosts (none yet)."""
