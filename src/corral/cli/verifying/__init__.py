# SPDX-License-Identifier: Apache-2.0
"""``corral provisioner verify``: an adversary for a user's provisioner."""
