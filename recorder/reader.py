"""Reads calls back: recipes to segments, segments to packs, packs to bytes. What it keeps is a cache and bounded."""

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, select

from recorder import recipe, rows, schema, segments
from recorder.call import Call, Outcome
from recorder.packs import Link, Packs

UNFINISHED = "recorder ended before the response did"
"""`Call.error` of a call that was started and never finished."""
SEGMENT_BYTES = 64 << 20
RECIPES = 256
SELECT_IDS = 500

CallRow = Row[Any]


class Reader:
    def __init__(self) -> None:
        self._packs = Packs()
        self._recipes: dict[int, tuple[list[int], int]] = {}
        self._segments: dict[int, bytes] = {}
        self._segment_bytes = 0

    def forget(self) -> None:
        self._packs.forget()
        self._recipes.clear()
        self._segments.clear()
        self._segment_bytes = 0

    def call(self, connection: Connection, row: CallRow) -> Call:
        """The call of a row of `rows.CALLS`; ValueError says what is damaged or missing."""
        request = rows.part(self.pack(connection, row.request_pack))[0]
        content = self.pack(connection, row.response_pack) if row.response_pack is not None else b""
        response = rows.part(content)[0] if content else b""
        if rows.row_digest(row._asdict(), request, response) != bytes(row.row_digest):
            raise ValueError("facts that differ from the digest of the row")
        method, url, request_headers, source = json.loads(request)
        body = b"".join(self._pieces(connection, self.recipe(connection, row.seq)[0]))
        if len(body) != row.request_length:
            raise ValueError(f"a request body of {len(body)} bytes in place of {row.request_length}")
        if content:
            response_headers, error = json.loads(response)
            response_body = rows.response_body(content, lambda ids: self._pieces(connection, ids))
            outcome = Outcome(row.outcome)
            if segments.digest(response_body) != bytes(row.response_digest):
                raise ValueError("a response body that differs from its digest")
        else:
            response_headers, error, response_body = [], UNFINISHED, self._arrived(connection, row.seq)
            outcome = Outcome.TRUNCATED if response_body else Outcome.UNANSWERED
        return Call(
            method=method,
            url=url,
            status=row.status,
            outcome=outcome,
            request_headers=tuple((n, v) for n, v in request_headers),
            response_headers=tuple((n, v) for n, v in response_headers),
            request_body=body,
            response_body=response_body,
            started_at_utc=row.started_at_utc,
            first_byte_s=row.first_byte_s,
            duration_s=row.duration_s,
            error=error,
            source=source,
            run=row.run_key,
            seq=row.seq,
        )

    def pack(self, connection: Connection, pack: int) -> bytes:
        return self._packs.content(connection, pack)

    def link(self, connection: Connection, pack: int) -> Link:
        return self._packs.link(connection, pack)

    def recipe(self, connection: Connection, seq: int) -> tuple[list[int], int]:
        """Segment ids of a request body, and how many recipes were read for it beyond its own."""
        chain: list[tuple[int, bytes]] = []
        at: int | None = seq
        while at is not None and at not in self._recipes:
            row = connection.execute(
                select(schema.call.c.recipe, schema.call.c.base).where(schema.call.c.seq == at)
            ).one_or_none()
            if row is None:
                raise ValueError(f"recipe of call {seq}: expected call {at} to tell it over, got none")
            if row.base is not None and row.base >= at:
                raise ValueError(f"recipe of call {at}: expected an earlier call to tell it over, got {row.base}")
            chain.append((at, bytes(row.recipe)))
            at = row.base
        ids, depth = self._recipes[at] if at is not None else ([], -1)
        if len(self._recipes) > RECIPES:
            self._recipes.clear()
        for number, told in reversed(chain):
            ids, depth = recipe.decode(told, ids), depth + 1
            self._recipes[number] = ids, depth
        return ids, depth

    def _pieces(self, connection: Connection, ids: Sequence[int]) -> list[bytes]:
        if self._segment_bytes > SEGMENT_BYTES:
            self._segments.clear()
            self._segment_bytes = 0
        missing = [i for i in dict.fromkeys(ids) if i not in self._segments]
        for at in range(0, len(missing), SELECT_IDS):
            some = missing[at : at + SELECT_IDS]
            places = connection.execute(select(schema.segment).where(schema.segment.c.id.in_(some))).all()
            contents = self._packs.fetch(connection, (p.pack for p in places))
            for place in places:
                piece = contents[place.pack][place.start : place.start + place.length]
                if segments.digest(piece) != bytes(place.digest):
                    raise ValueError(f"segment {place.id}: its bytes differ from its digest")
                self._segments[place.id] = piece
                self._segment_bytes += len(piece)
        lost = next((i for i in missing if i not in self._segments), None)
        if lost is not None:
            raise ValueError(f"segment {lost}: expected it stored, got none")
        return [self._segments[i] for i in ids]

    def _arrived(self, connection: Connection, seq: int) -> bytes:
        query = select(schema.chunk.c.data).where(schema.chunk.c.seq == seq).order_by(schema.chunk.c.place)
        return b"".join(bytes(d) for d in connection.scalars(query))
