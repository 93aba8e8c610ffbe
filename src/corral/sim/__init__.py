# SPDX-License-Identifier: Apache-2.0
"""The control plane in virtual time."""
