"""The images that a call's request carries inline, as data URIs by the content hash that stands for them elsewhere."""

from collections.abc import Iterator

from recorder import canonical
from recorder.call import Call
from recorder.encoding import decode

TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
"""Pixels only: nothing that could bring markup along."""
_NAMES = tuple(name.encode() for name in TYPES)
MAX_CHARS = 4_000_000
"""Of base64; larger ones are named by their hash. Ours: a page stays a page."""


def images(call: Call) -> dict[str, str]:
    """Empty where the body cannot be read, as most have none."""
    try:
        body = decode(call.request_body, call.request_header("content-encoding"))
        if not any(name in body for name in _NAMES):
            return {}
        return {canonical.data_hash(data): f"data:{kind};base64,{data}" for kind, data in _found(canonical.loads(body))}
    except ValueError:
        return {}


def _found(body: object) -> Iterator[tuple[str, str]]:
    """(media type, base64) of everything in some JSON that looks like inline image data, in any wire format."""
    waiting = [body]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting.extend(value)
        elif isinstance(value, dict):
            waiting.extend(value.values())
            kind = value.get("media_type") or value.get("mimeType") or value.get("mime_type")
            data = value.get("data")
            if kind in TYPES and isinstance(data, str) and _is_base64(data):
                yield str(kind), data
        elif isinstance(value, str) and value.startswith("data:image/"):
            kind, _, data = value[5:].partition(";base64,")
            if kind in TYPES and _is_base64(data):
                yield kind, data


def _is_base64(data: str) -> bool:
    digits = data.replace("+", "").replace("/", "").rstrip("=")
    return 0 < len(data) <= MAX_CHARS and digits.isascii() and digits.isalnum()
