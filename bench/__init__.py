# SPDX-License-Identifier: Apache-2.0
"""Benchmarks: `make bench`. Each case starts the shipped server in its own process, and checks what it did."""
