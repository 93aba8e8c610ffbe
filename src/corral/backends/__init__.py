# SPDX-License-Identifier: Apache-2.0
"""Kinds of instances: create, destroy, list."""
