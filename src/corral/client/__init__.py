# SPDX-License-Identifier: Apache-2.0
"""Typed API client."""
