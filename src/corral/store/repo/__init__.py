# SPDX-License-Identifier: Apache-2.0
"""Repositories: plain functions over a connection, the same SQL on every engine.

Every state write is a compare-and-set: it names the state (or version) it starts from and says whether it won.
"""
