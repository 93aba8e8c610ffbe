# SPDX-License-Identifier: Apache-2.0
"""The worker's side."""
