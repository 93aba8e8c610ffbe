# SPDX-License-Identifier: Apache-2.0
"""Loops, one file per service."""
