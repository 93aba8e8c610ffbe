# SPDX-License-Identifier: Apache-2.0
"""``corral demo``: a real package's own tests, in parts, on agents made for them."""
