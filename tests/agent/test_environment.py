# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from corral.agent.environment import STANDARD_PATH, base, carries_credentials, inherited
from corral.model.agentconfig import DEFAULT_INHERIT_ENV


def test_the_base_has_exactly_what_is_documented() -> None:
    agent = {"PATH": "/venv/bin:/usr/bin", "HOME": "/root", "LANG": "de_DE", "SECRET": "x"}
    assert base(agent, home="/h", tmp="/t", own_prefixes=("/venv",)) == {
        "PATH": "/usr/bin",
        "HOME": "/h",
        "TMPDIR": "/t",
        "LANG": "C.UTF-8",
        "CI": "true",
    }
    assert base({}, home="/h", tmp="/t", own_prefixes=())["PATH"] == STANDARD_PATH


@pytest.mark.parametrize(
    ("value", "carries"),
    [
        ("http://proxy:3128", False),
        ("http://user:pw@proxy:3128", True),
        ("user:pw@proxy:3128", True),
        ("http://a/x http://token@b/simple", True),
        ("localhost,127.0.0.1,.example.org", False),
        ("/etc/ssl/certs", False),
        ("http://[bad@", True),
        ("http://host/path@2x", False),
    ],
)
def test_credentials_in_urls_are_seen(value: str, carries: bool) -> None:
    assert carries_credentials(value) is carries


def test_only_what_a_pattern_names_is_inherited() -> None:
    agent = {
        "PIP_INDEX_URL": "https://m/simple",
        "UV_INDEX": "https://u:p@m/simple",
        "UV_PUBLISH_TOKEN": "t",
        "UV_INDEX_OURS_PASSWORD": "p",
        "SSL_CERT_FILE": "/ca.pem",
        "no_proxy": "localhost",
        "PATH": "/x",
        "PYTHONPATH": "/y",
        "OTHER": "1",
    }
    assert inherited(agent, DEFAULT_INHERIT_ENV) == {
        "PIP_INDEX_URL": "https://m/simple",
        "SSL_CERT_FILE": "/ca.pem",
        "no_proxy": "localhost",
    }
    assert inherited(agent, ("*",)).keys() == {"PIP_INDEX_URL", "SSL_CERT_FILE", "no_proxy", "OTHER"}
    assert inherited(agent, ("UV_*", "UV_PUBLISH_TOKEN")) == {"UV_PUBLISH_TOKEN": "t"}, "somebody decided so"
    assert inherited(agent, ()) == {}
