# SPDX-License-Identifier: Apache-2.0
"""The database, log and source archives."""
