"""An engine turns a canonical request into an answer. It knows nothing of wire formats."""

from typing import Protocol

from proxy.gateway.completion import Answer, Refusal
from proxy.gateway.request import Request


class Engine(Protocol):
    @property
    def models(self) -> tuple[str, ...]:
        """Names to list; a request may ask for any other."""

    async def answer(self, request: Request) -> Answer | Refusal: ...

    def count_tokens(self, request: Request) -> int: ...
