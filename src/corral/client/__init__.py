# SPDX-License-Identifier: Apache-2.0
"""Typed API client, used by the command line and by tests. Knows model and wire only."""

from corral.client.client import Client, LogChunk
from corral.client.problems import Unreachable
from corral.client.transport import AppTransport

__all__ = ["AppTransport", "Client", "LogChunk", "Unreachable"]
