# SPDX-License-Identifier: Apache-2.0
"""microVMs on Firecracker. ``api`` speaks to a running one; see docs/firecracker-api.md."""
