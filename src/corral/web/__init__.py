# SPDX-License-Identifier: Apache-2.0
"""HTTP and WebSocket API."""
