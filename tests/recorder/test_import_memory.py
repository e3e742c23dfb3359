"""Ten thousand calls are imported in the memory that two thousand need."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from storecalls import SESSION, anthropic, stream

RUN = """
import resource, sys
from pathlib import Path
from recorder.importing import import_path
from recorder.store import Store
peak = {}
def look(done, total):
    peak[done] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
with Store.open(sys.argv[2]) as store:
    done = import_path(store, sys.argv[1], progress=look)
print(done.added, peak[2016], max(peak.values()))
"""


def bodies(calls: int) -> Iterator[tuple[str, str]]:
    """Sessions of twenty calls that grow by a line each."""
    for i in range(calls):
        said = [f"line {i // 20}.{j}: " + "why so? " * 8 for j in range(i % 20 + 1)]
        yield anthropic(*said, session=f"{i // 20:08x}{SESSION[8:]}").decode(), stream("because", f" of {i}").decode()


def har(path: Path, calls: int) -> None:
    head = [{"name": "content-type", "value": "text/event-stream"}]
    with path.open("w") as file:
        file.write('{"log":{"entries":[')
        for i, (asked, answered) in enumerate(bodies(calls)):
            request = {"method": "POST", "url": "https://api.anthropic.com/v1/messages", "postData": {"text": asked}}
            response = {"status": 200, "headers": head, "content": {"text": answered}}
            file.write(("," if i else "") + json.dumps({"request": request, "response": response}))
        file.write("]}}")


def claude_trace(path: Path, calls: int) -> None:
    with path.open("w") as file:
        for asked, answered in bodies(calls):
            request = {"method": "POST", "url": "https://api.anthropic.com/v1/messages", "body": json.loads(asked)}
            response = {"status_code": 200, "headers": {"content-type": "text/event-stream"}, "body_raw": answered}
            file.write(json.dumps({"request": request, "response": response}) + "\n")


@pytest.mark.slow
@pytest.mark.parametrize(("made", "calls"), [(har, 10_000), (claude_trace, 4_000)])
def test_memory_does_not_grow_with_the_file(tmp_path: Path, made: Callable[[Path, int], None], calls: int) -> None:
    made(tmp_path / "file", calls)
    assert (tmp_path / "file").stat().st_size > 1800 * calls
    words = [sys.executable, "-c", RUN, str(tmp_path / "file"), str(tmp_path / "t.db")]
    said = subprocess.run(words, check=True, capture_output=True, text=True, timeout=200).stdout
    added, early, late = map(int, said.split())
    assert added == calls
    assert late - early < 64, f"MiB at the peak: {early} after 2016 calls, {late} after {calls}"
