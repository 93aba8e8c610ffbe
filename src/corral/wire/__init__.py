# SPDX-License-Identifier: Apache-2.0
"""The agent protocol: messages, codec, sans-IO sessions."""
