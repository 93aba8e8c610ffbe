# SPDX-License-Identifier: Apache-2.0
"""Nouns: frozen values, typed ids, states and their transition tables, the error tree."""
