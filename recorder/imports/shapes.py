"""What a recording made elsewhere must be made of; anything else is a SourceError that says where."""

from recorder.errors import SourceError

Json = dict[str, object]


def number(value: object, where: str) -> float:
    """None reads as 0: writers leave out what they do not know."""
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SourceError(f"{where}: expected a number, got {type(value).__name__}")
    return float(value)


def text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise SourceError(f"{where}: expected text, got {type(value).__name__}")
    return value


def mapping(value: object, where: str) -> Json:
    if not isinstance(value, dict):
        raise SourceError(f"{where}: expected an object, got {type(value).__name__}")
    return value


def array(value: object, where: str) -> list[object]:
    if not isinstance(value, list):
        raise SourceError(f"{where}: expected an array, got {type(value).__name__}")
    return value
