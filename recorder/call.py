"""One HTTP attempt, as bytes. A retry is another call; what the bytes mean is the business of `recorder.wire`."""

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """How the exchange ended on the wire. Errors told inside a complete stream are the reply's business, not this."""

    COMPLETE = "complete"
    TRUNCATED = "truncated"
    """The upstream (or the recorder's death) cut the response; `error` says who."""
    ABORTED = "aborted"
    """The client went away first."""
    HTTP_ERROR = "http_error"
    """A whole response with a status of 400 or more."""
    STREAM_ERROR = "stream_error"
    """Status 200 and a whole response that carries the format's own error event."""
    UNANSWERED = "unanswered"
    """No response byte came: refused, timed out, or cut before the status line."""


@dataclass(frozen=True, slots=True)
class Call:
    """One HTTP request and whatever came back, exactly. Websockets: one call per client frame that asks for a reply."""

    method: str
    url: str
    """Absolute; values of query parameters that carry keys are replaced by `REDACTED`."""
    status: int | None
    """None = no response head arrived. 101 for a websocket turn."""
    outcome: Outcome
    request_headers: tuple[tuple[str, str], ...]
    """Allow-listed, names in lower case, order as sent. Never credentials or cookies."""
    response_headers: tuple[tuple[str, str], ...]
    request_body: bytes
    """As on the wire, content-encoding not undone. A websocket turn: the client's frame."""
    response_body: bytes
    """As on the wire, chunked framing undone, content-encoding not undone. A websocket turn: the server's frames as an
    RFC 7464 sequence (0x1E frame 0x0A, repeated)."""
    started_at_utc: float
    """Unix seconds at the request's first byte; 0.0 = the source did not say."""
    first_byte_s: float | None = None
    """Seconds from start to the first byte of the response body; None = none came or the source did not say."""
    duration_s: float | None = None
    error: str = ""
    """What the transport said when the outcome is not complete; empty otherwise."""
    source: str = ""
    """Where it was recorded: `proxy`, or `NAME.har#COMMENT` for an import."""
    run: str = ""
    """Id of the recording (one `memorywalker run`) or import it belongs to."""
    seq: int = 0
    """Place in the database, from 1, in order of start; 0 = not stored."""

    def request_header(self, name: str) -> str:
        """First value of a request header (name in lower case), or the empty string."""
        return next((v for n, v in self.request_headers if n == name), "")

    def response_header(self, name: str) -> str:
        return next((v for n, v in self.response_headers if n == name), "")
