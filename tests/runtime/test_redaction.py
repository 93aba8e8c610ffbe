# SPDX-License-Identifier: Apache-2.0
"""T2, T6: what opens something is taken out of texts, whole or cut short; ordinary words stay."""

from __future__ import annotations

import pytest

from corral.runtime.chance import SeededChance, secret_token
from corral.runtime.redaction import MASK, redacted

CHANCE = SeededChance(7)
CLAIM = secret_token(CHANCE, "claim_")
TOKEN = secret_token(CHANCE, "corral_")
KEY = secret_token(CHANCE, "corral_agent_")
WEBHOOK = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@pytest.mark.parametrize("secret", [CLAIM, TOKEN, KEY, WEBHOOK, secret_token(CHANCE, "key_")])
@pytest.mark.parametrize("frame", ["{}", "exit 1: --claim={} refused", '{{"claim_code": "{}"}}', "a,{};b", "x\n{}\ny"])
def test_a_credential_is_masked_wherever_it_stands(secret: str, frame: str) -> None:
    shown = redacted(frame.format(secret))
    assert secret not in shown
    assert secret[-24:] not in shown
    assert MASK in shown


def test_a_cut_credential_is_masked_too() -> None:
    assert CLAIM[6:30] not in redacted(f"output ends with {CLAIM[:30]}")


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer abcdefgh.ijkl-mnop",
        "authorization=Basic YWJjZGVmZ2g6aWprbA==",
        "{'Authorization': 'Bearer abcdefgh'}",
        "bearer abcdefghijkl",
        "Authorization: abcdefgh",
    ],
)
def test_a_bearer_value_is_masked_whatever_its_form(text: str) -> None:
    """T2: a dumped request shows no credential."""
    shown = redacted(text)
    assert "abcdefgh" not in shown
    assert "YWJj" not in shown


def test_a_password_in_a_url_is_masked_and_the_rest_stays_readable() -> None:
    assert redacted("clone https://ci:hunter22@git.example.org/x") == f"clone https://ci:{MASK}@git.example.org/x"


def test_known_values_are_masked_the_longest_first_and_short_ones_left() -> None:
    assert redacted("abcdefghij", ["abcdefgh", "abcdefghij"]) == MASK
    assert redacted("to be or not to be", ["to", ""]) == "to be or not to be"


@pytest.mark.parametrize(
    "text",
    [
        "corral_provisions_abandoned rose",
        "claim_retention is 1 h",
        "agent_abcdefghijkmnpqrstuvwxyz23 of run_23456789abcdefgh",
        "the bearer of news",
        "sha256 0123456789abcdef0123456789abcdef",
        "https://example.org:8080/path",
    ],
)
def test_ordinary_words_stay(text: str) -> None:
    assert redacted(text) == text
