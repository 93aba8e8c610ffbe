# SPDX-License-Identifier: Apache-2.0
"""The one source of randomness: secrets and identities from the system, jitter from a generator.

The simulator passes a seeded one, so that a seed is a whole history.
"""

from __future__ import annotations

import random
import secrets
from typing import Protocol

from corral.model.ids import AgentId, ClusterId, CoordinatorId, JobId, RunId, TokenId

_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"
"""32 characters without 0, 1, l, o: 5 bits each, and read over the phone without a mistake."""


class Chance(Protocol):
    def token_bytes(self, count: int) -> bytes:
        """``count`` unpredictable bytes."""
        ...

    def uniform(self, low: float, high: float) -> float:
        """A float in [low, high]; for jitter, never for secrets."""
        ...


class SystemChance:
    def token_bytes(self, count: int) -> bytes:
        return secrets.token_bytes(count)

    def uniform(self, low: float, high: float) -> float:
        return random.uniform(low, high)


class SeededChance:
    """The same seed gives the same history. Not for production: its secrets can be predicted."""

    def __init__(self, seed: int | str) -> None:
        self.random = random.Random(seed)

    def token_bytes(self, count: int) -> bytes:
        return self.random.randbytes(count)

    def uniform(self, low: float, high: float) -> float:
        return self.random.uniform(low, high)


def _word(chance: Chance, length: int) -> str:
    return "".join(_ALPHABET[byte & 31] for byte in chance.token_bytes(length))


def run_id(chance: Chance) -> RunId:
    return RunId("run_" + _word(chance, 16))


def job_id(chance: Chance) -> JobId:
    return JobId("job_" + _word(chance, 16))


def agent_id(chance: Chance) -> AgentId:
    return AgentId("agent_" + _word(chance, 26))


def token_id(chance: Chance) -> TokenId:
    return TokenId("tok_" + _word(chance, 16))


def coordinator_id(chance: Chance) -> CoordinatorId:
    return CoordinatorId("coord_" + _word(chance, 16))


def cluster_id(chance: Chance) -> ClusterId:
    return ClusterId("corral-" + _word(chance, 16))


def secret_token(chance: Chance, prefix: str) -> str:
    """``prefix`` and 256 random bits in hex: a credential. ``prefix`` tells scanners and people what it is."""
    return prefix + chance.token_bytes(32).hex()
