"""Fresh ids in the shapes that the real servers use."""

import secrets
import string

_ALPHABET = string.digits + string.ascii_letters
_LENGTH = {
    "msg_01": 22,
    "toolu_01": 22,
    "req_011": 21,
    "chatcmpl-": 29,
    "call_": 24,
    "resp_": 48,
    "rs_": 48,
    "fc_": 48,
    "msg_": 48,
}


def fresh(prefix: str) -> str:
    """A random id; the prefix must be one of those known here."""
    length = _LENGTH[prefix]
    if length == 48:  # OpenAI's response items are hexadecimal
        return prefix + secrets.token_hex(length // 2)
    return prefix + "".join(secrets.choice(_ALPHABET) for _ in range(length))
