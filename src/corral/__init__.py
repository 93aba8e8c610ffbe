# SPDX-License-Identifier: Apache-2.0
"""Corral: a self-hosted CI orchestrator."""

__version__ = "0.1.0.dev0"
