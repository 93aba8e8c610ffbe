# SPDX-License-Identifier: Apache-2.0
"""The author's language."""
