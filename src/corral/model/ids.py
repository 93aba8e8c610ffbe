# SPDX-License-Identifier: Apache-2.0
"""Typed identifiers: strings that a type checker keeps apart.

All of them are random (made by :mod:`corral.runtime.chance`), never reused, lower case, and carry a prefix
that says what they name, so that one pasted into the wrong place is recognised.
"""

from typing import NewType

RunId = NewType("RunId", str)
"""``run_`` and 16 base-32 characters (80 random bits)."""
JobId = NewType("JobId", str)
"""``job_`` and 16 base-32 characters."""
AgentId = NewType("AgentId", str)
"""``agent_`` and 26 base-32 characters (130 random bits); also names the agent's provision and its instance."""
TokenId = NewType("TokenId", str)
"""``tok_`` and 16 base-32 characters; names a token, opens nothing."""
CoordinatorId = NewType("CoordinatorId", str)
"""``coord_`` and 16 base-32 characters."""
ClusterId = NewType("ClusterId", str)
"""``corral-`` and 16 base-32 characters: one installation, on everything it creates."""
SourceHash = NewType("SourceHash", str)
"""SHA-256 of a source archive, 64 hex digits."""

PREFIXES = {"run": "run_", "job": "job_", "agent": "agent_", "token": "tok_"}
