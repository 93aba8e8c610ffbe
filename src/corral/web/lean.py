# SPDX-License-Identifier: Apache-2.0
"""uvicorn's WebSocket protocol without what only its handshake needs: thousands of agents are connected for days."""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol


class LeanWebSocket(WebSocketsSansIOProtocol):
    """Forgets the request, the response and the headers once the connection stands: 4 kB of each."""

    async def send(self, message: Any) -> None:
        await super().send(message)
        if message["type"] == "websocket.accept" and self.handshake_complete:
            del self.request, self.response
            self.scope["headers"] = []
