# SPDX-License-Identifier: Apache-2.0
"""The configuration: ``corral.yaml`` and ``pools.d/*.yaml``, read strictly, every fault at once with its place.

``shape`` says which keys there are, ``meaning`` what their values have to be among each other, ``pools`` what becomes
of them, ``loading`` which files are read.
"""

from __future__ import annotations

from corral.cli.config.loading import (
    Configuration,
    Source,
    default_config,
    load_config,
    load_configuration,
    parse_config,
    parse_sources,
    read_sources,
)
from corral.cli.config.pools import host_labels, to_caps, to_pool
from corral.cli.config.shape import CONFIG_VERSION, PoolConfig, PoolsFile, ServerConfig
from corral.cli.config.sizes import parse_size

__all__ = [
    "CONFIG_VERSION",
    "Configuration",
    "PoolConfig",
    "PoolsFile",
    "ServerConfig",
    "Source",
    "default_config",
    "host_labels",
    "load_config",
    "load_configuration",
    "parse_config",
    "parse_size",
    "parse_sources",
    "read_sources",
    "to_caps",
    "to_pool",
]
