# SPDX-License-Identifier: Apache-2.0
"""Which files are read, and one configuration out of them: all of it, or every fault of all of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from corral.backends.event.secretfile import SecretAbsent, SecretUnusable
from corral.cli.config.meaning import Entry, entries, pool_faults, texts, top_faults, version_faults
from corral.cli.config.pools import to_caps, to_pool
from corral.cli.config.secrets import SecretPlaces, name_fault
from corral.cli.config.shape import CONFIG_VERSION, PoolConfig, PoolsFile, ServerConfig
from corral.model.errors import Fault, Invalid
from corral.model.labels import labels
from corral.model.pools import Caps, Pool
from corral.runtime.schema import misfits
from corral.runtime.yamlfile import SIZE_LIMIT, Document, parse_yaml

MAIN = "corral.yaml"
PARTS = "pools.d"
SUFFIXES = (".yaml", ".yml")
_PLATFORMS = frozenset({"windows", "macos", "darwin", "arm64", "aarch64"})
"""Labels of platforms that most jobs do not run on."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """One file. ``name``: as the person named it. ``part``: of ``pools.d``, where only pools may stand."""

    name: str
    text: str
    part: bool = False


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """``config`` holds the pools of every file, in the order of the files. ``warnings``: nothing that is wrong, but
    that may not be what was meant, or is missing here and may be there where the server runs."""

    config: ServerConfig
    files: tuple[str, ...] = ()
    warnings: tuple[Fault, ...] = ()

    def pools(self) -> tuple[Pool, ...]:
        return tuple(to_pool(pool) for pool in self.config.pools)

    def caps(self) -> Caps:
        return to_caps(self.config)


@dataclass(kw_only=True)
class _Faults:
    found: list[Fault] = field(default_factory=list)

    def of(self, error: Invalid) -> None:
        self.found += error.faults


def default_config(max_agents: int | None = None) -> ServerConfig:
    """Without a file: one pool of processes, as many agents as cores, for every job."""
    count = max_agents if max_agents is not None else os.cpu_count() or 1
    pool = PoolConfig(name="local", backend="process", labels=("local",), max_agents=count, default=True)
    return ServerConfig(version=CONFIG_VERSION, pools=(pool,))


def load_config(path: Path) -> ServerConfig:
    """:raises Invalid: every fault of the files."""
    return load_configuration(path).config


def load_configuration(
    path: Path, *, secrets: SecretPlaces | None = None, kinds: Mapping[str, str] | None = None
) -> Configuration:
    """From a file with its ``pools.d`` beside it, or from a directory that holds both.

    :param secrets: where to look for the secrets that it names; None: they are not looked for.
    :param kinds: backends of the pools there are, which cannot change.
    :raises Invalid: every fault of every file.
    """
    return parse_sources(read_sources(path), secrets=secrets, kinds=kinds)


def parse_config(text: str, name: str) -> ServerConfig:
    """One main file by itself. :raises Invalid: every fault, of form and of meaning."""
    return parse_sources((Source(name=name, text=text),)).config


# --- files -------------------------------------------------------------------------------------------------


def read_sources(path: Path) -> tuple[Source, ...]:
    """The main file, then the parts in the order of the alphabet. :raises Invalid: every one that cannot be read."""
    main = path / MAIN if path.is_dir() else path
    faults = _Faults()
    sources = []
    for place, part in [(main, False), *((part, True) for part in _parts(main.parent / PARTS, faults))]:
        try:
            sources.append(Source(name=str(place), text=_read(place), part=part))
        except Invalid as error:
            faults.of(error)
    if faults.found:
        raise Invalid(str(path), sorted(faults.found))
    return tuple(sources)


def _parts(directory: Path, faults: _Faults) -> list[Path]:
    """Files in it that do not end in ``.yaml`` or ``.yml``, or are hidden, are not ours."""
    try:
        paths = sorted(directory.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        faults.found.append(Fault(file=str(directory), message=f"cannot be read: {error.strerror}"))
        return []
    return [path for path in paths if path.name.endswith(SUFFIXES) and not path.name.startswith(".")]


def _read(path: Path) -> str:
    try:
        # A pipe or device would never end, or keep the server waiting.
        if path.exists() and not path.is_file():
            raise Invalid(str(path), [Fault(file=str(path), message="cannot be read: it is not a file")])
        with path.open("rb") as file:
            return file.read(SIZE_LIMIT + 1).decode("utf-8")
    except FileNotFoundError:
        message = "no such file"
    except UnicodeDecodeError as error:
        message = f"is not UTF-8 text: {error.reason}"
    except OSError as error:
        message = f"cannot be read: {error.strerror}"
    except ValueError as error:
        message = f"cannot be read: {error}"
    raise Invalid(str(path), [Fault(file=str(path), message=message)])


# --- one configuration -------------------------------------------------------------------------------------


def parse_sources(
    sources: Sequence[Source], *, secrets: SecretPlaces | None = None, kinds: Mapping[str, str] | None = None
) -> Configuration:
    """The first source is the main file. :raises Invalid: every fault of all of them."""
    faults = _Faults()
    documents: list[tuple[Document, bool]] = []
    for source in sources:
        try:
            document = parse_yaml(source.text, source.name)
        except Invalid as error:
            faults.of(error)
        else:
            documents.append((document, source.part))
            faults.found += _form(document, PoolsFile if source.part else ServerConfig)
    main = next((document for document, part in documents if not part), _nothing(sources[0].name))
    pools = [entry for document, _ in documents for entry in entries(document)]
    faults.found += top_faults(main)
    faults.found += pool_faults(pools, main, kinds or {})
    warnings = list(_platforms(pools))
    for fault, is_absent in _secrets(pools, secrets):
        lenient = is_absent and secrets is not None and not secrets.required
        (warnings if lenient else faults.found).append(fault)
    if faults.found:
        raise Invalid(sources[0].name, sorted(set(faults.found)))
    return Configuration(
        config=_joined(documents), files=tuple(source.name for source in sources), warnings=tuple(sorted(warnings))
    )


def _nothing(name: str) -> Document:
    return Document(name=name, data={}, places={})


def _form(document: Document, kind: type[Any]) -> Iterator[Fault]:
    for misfit in misfits(document.data, kind):
        yield document.fault(misfit.path, misfit.message, misfit.remedy)
    yield from version_faults(document)


def _joined(documents: Sequence[tuple[Document, bool]]) -> ServerConfig:
    config = msgspec.convert(documents[0][0].data, ServerConfig)
    parts = [msgspec.convert(document.data, PoolsFile) for document, part in documents if part]
    pools = (*config.pools, *(pool for part in parts for pool in part.pools))
    return msgspec.structs.replace(config, pools=pools)


def _platforms(pools: Sequence[Entry]) -> Iterator[Fault]:
    """A platform among the labels keeps no job away: said aloud, since it is easily meant to."""
    for pool in pools:
        if pool.data.get("backend") != "event":
            continue
        mandatory = labels(texts(pool.data.get("mandatory")))
        for label in sorted((labels(texts(pool.data.get("labels"))) & _PLATFORMS) - mandatory):
            message = f"jobs that do not ask for {label!r} may run here too: labels offer, they do not demand"
            yield pool.fault("labels", message, f"add {label} to mandatory to keep them away")


def _secrets(pools: Sequence[Entry], places: SecretPlaces | None) -> Iterator[tuple[Fault, bool]]:
    """Each with whether it is only not there."""
    if places is None:
        return
    for pool in pools:
        provisioner = pool.data.get("provisioner")
        webhook = provisioner.get("webhook") if isinstance(provisioner, dict) else None
        name = webhook.get("secret") if isinstance(webhook, dict) else None
        if not isinstance(name, str) or name_fault(name) is not None:
            continue
        at = (*pool.at, "provisioner", "webhook", "secret")
        try:
            places.check(name)
        except SecretUnusable as error:
            yield pool.document.fault(at, error.message), isinstance(error, SecretAbsent)
