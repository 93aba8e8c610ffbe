# SPDX-License-Identifier: Apache-2.0
"""Pure plans: frozen inputs in, a frozen plan with reasons out."""
