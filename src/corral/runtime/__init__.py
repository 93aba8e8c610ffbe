# SPDX-License-Identifier: Apache-2.0
"""Clock, chance, ids, services, logging."""
