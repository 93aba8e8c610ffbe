# SPDX-License-Identifier: Apache-2.0
"""Instances that are processes of this host.

``warden``, ``guard``, ``launch``, ``killing``, ``procfs`` and ``removal`` also run outside the package, in a bare
interpreter: they import the standard library and each other only, and this file imports nothing.
"""
