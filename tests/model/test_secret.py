# SPDX-License-Identifier: Apache-2.0
"""A secret leaves only by `reveal`."""

from __future__ import annotations

import copy
import dataclasses
import json
import logging
import pickle
import pprint
import traceback

import msgspec
import pytest

from corral.model.secret import Secret

VALUE = "canary-5f0c"


@dataclasses.dataclass(frozen=True)
class Holder:
    secret: Secret


def test_it_is_revealed_when_asked() -> None:
    assert Secret(VALUE).reveal() == VALUE


@pytest.mark.parametrize(
    "show",
    [
        str,
        repr,
        ascii,
        lambda s: f"{s}",
        lambda s: f"{s!r:>40}",
        lambda s: f"{s:>40}",
        lambda s: "%s %r" % (s, s),  # noqa: UP031
        lambda s: f"{[s]} { ({'k': s}) } {(s,)}",
        lambda s: repr(Holder(s)),
        lambda s: pprint.pformat({"s": s}),
        lambda s: json.dumps({"s": s}, default=str),
        lambda s: repr(ValueError(s)),
    ],
)
def test_no_formatting_shows_it(show: object) -> None:
    text = show(Secret(VALUE))  # type: ignore[operator]
    assert VALUE not in text
    assert "[secret]" in text


@pytest.mark.parametrize(
    "serialise",
    [
        json.dumps,
        msgspec.json.encode,
        msgspec.msgpack.encode,
        msgspec.to_builtins,
        copy.copy,
        copy.deepcopy,
        vars,
        *(lambda s, n=n: pickle.dumps(s, n) for n in range(pickle.HIGHEST_PROTOCOL + 1)),
        lambda s: dataclasses.asdict(Holder(s)),
        bytes,
        iter,
        len,
        lambda s: "".join([s]),
        lambda s: s + "",
    ],
)
def test_no_serialiser_takes_it(serialise: object) -> None:
    with pytest.raises(TypeError) as caught:
        serialise(Secret(VALUE))  # type: ignore[operator]
    assert VALUE not in str(caught.value)


def test_logs_and_tracebacks(caplog: pytest.LogCaptureFixture) -> None:
    secret = Secret(VALUE)
    try:
        raise RuntimeError("it went wrong", secret)
    except RuntimeError:
        logging.getLogger("corral").exception("with %s", secret)
        captured = traceback.TracebackException.from_exception(__import__("sys").exc_info()[1], capture_locals=True)
    assert "with [secret]" in caplog.text
    assert VALUE not in caplog.text
    assert VALUE not in "".join(line for line in captured.format() if "VALUE" not in line)


def test_equality_is_of_secrets_only() -> None:
    assert Secret("a") == Secret("a")
    assert Secret("a") != Secret("b")
    assert Secret("a") != "a"
    assert len({Secret("a"), Secret("a"), Secret("b")}) == 2
