# SPDX-License-Identifier: Apache-2.0
"""Commands; wiring.py alone picks adapters."""
