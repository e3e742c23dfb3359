"""`mismatches.jsonl`: the calls whose served ids are not the chat template's, one a line, and why. No call, no file.

trajectory  str   session id of the recorded calls
call        int   the recorder's number of the call
where       str   prompt | completion
at          int   index of the first token that differs, within it
cause       str   template | retokenisation | edit, as `trainer.served` has them
detail      str   what was served and what the template has from there on
"""

from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import IO

import orjson

from trainer.samples import Selection

FILE = "mismatches.jsonl"


class Mismatches:
    def __init__(self, out: Path) -> None:
        self._path = out / FILE
        self._file: IO[bytes] | None = None

    def __enter__(self) -> "Mismatches":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file:
            self._file.close()

    def add(self, trajectory: str, selection: Selection) -> None:
        for one in selection.mismatches:
            if self._file is None:
                self._file = self._path.open("wb")
            line = {"trajectory": trajectory, "call": one.call} | asdict(one.differs)
            self._file.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
