# SPDX-License-Identifier: Apache-2.0
"""The event backend: instances made and destroyed by the user's own provisioner."""
