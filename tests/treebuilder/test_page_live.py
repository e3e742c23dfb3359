"""The live page: it follows a database, call by call, and disturbs nobody who reads."""

import json
import shutil
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from simulate import CAPTURES

from proxy.pageserver import PageServer
from recorder.call import Call
from recorder.errors import LaunchError, StoreError
from recorder.importing import read_har
from recorder.store import Store
from treebuilder.page_live import LivePage

CALLS = list(read_har(CAPTURES / "claude-code" / "autocompact.har"))


def recorded(db: Path, calls: list[Call]) -> Path:
    with Store.open(db) as store:
        for call in calls:
            store.put(call)
    return db


@contextmanager
def serving(db: Path) -> Iterator[str]:
    with PageServer(db, LivePage(), poll_s=0.02) as server:
        yield server.url


def events(url: str, *, after: int, wanted: int, last: str = "") -> list[tuple[int, dict[str, Any]]]:
    """(id, piece) of the first events."""
    request = urllib.request.Request(f"{url}events?after={after}", headers={"Last-Event-ID": last} if last else {})
    found: list[tuple[int, dict[str, Any]]] = []
    with urllib.request.urlopen(request, timeout=10) as response:
        number = 0
        while len(found) < wanted:
            line = response.readline().decode()
            if line.startswith("id: "):
                number = int(line[4:])
            elif line.startswith("data: "):
                found.append((number, json.loads(line[6:])))
    return found


def numbers(piece: dict[str, Any]) -> list[str]:
    return [turn["number"] for turn in piece["turns"]]


def test_a_call_that_ends_later_comes_as_an_event(tmp_path: Path) -> None:
    db = recorded(tmp_path / "t.db", CALLS[:2])
    with serving(db) as url:
        assert b'"number":"2"' in urllib.request.urlopen(url).read()
        recorded(db, CALLS[2:3])
        ((number, piece),) = events(url, after=1, wanted=1)
    assert (number, numbers(piece)) == (2, ["3"])


def test_a_reader_who_lost_the_connection_gets_what_it_missed_and_no_more(tmp_path: Path) -> None:
    db = recorded(tmp_path / "t.db", CALLS[:2])
    with serving(db) as url:
        urllib.request.urlopen(url).read()
        for at in (2, 3):
            recorded(db, CALLS[at : at + 1])
            events(url, after=at - 1, wanted=1)
        assert [number for number, _ in events(url, after=0, last="1", wanted=2)] == [2, 3]


def test_a_call_that_was_still_running_is_told_again_when_it_ends(tmp_path: Path) -> None:
    db = recorded(tmp_path / "t.db", CALLS[:1])
    with Store.open(db) as store:
        running = store.start(CALLS[1])
        with serving(db) as url:
            page = urllib.request.urlopen(url).read()
            assert b'"outcome":"unanswered"' in page
            store.finish(running, CALLS[1])
            ((_, piece),) = events(url, after=1, wanted=1)
    (turn,) = piece["turns"]
    assert (turn["number"], turn["outcome"]) == ("2", "complete")
    assert turn["reply"] is not None


def test_a_burst_of_calls_is_not_lost(tmp_path: Path) -> None:
    db = recorded(tmp_path / "t.db", [])
    with serving(db) as url:
        writer = threading.Thread(target=recorded, args=(db, CALLS))
        writer.start()
        told = set[str]()
        at = 0
        while len(told) < 10:
            ((at, piece),) = events(url, after=at, wanted=1)
            told |= set(numbers(piece))
        writer.join()
    assert told == {str(i) for i in range(1, 11)}


class Broken(LivePage):
    def add(self, call: Call) -> None:
        if call.seq > 1:
            raise ValueError("a call that\nno tree can take")
        super().add(call)


def test_a_page_that_cannot_go_on_says_why_and_stays_up(tmp_path: Path) -> None:
    db = recorded(tmp_path / "t.db", CALLS[:1])
    with PageServer(db, Broken(), poll_s=0.02) as server:
        recorded(db, CALLS[1:2])
        with urllib.request.urlopen(f"{server.url}events?after=1", timeout=10) as response:
            told = response.read().decode()
        assert told.endswith("event: failure\ndata: ValueError: a call that no tree can take\n\n")
        assert b'"number":"1"' in urllib.request.urlopen(server.url).read()


@pytest.mark.parametrize("path", ["", "events", "x/", "x/events?after=0"])
def test_who_does_not_know_the_address_sees_nothing(tmp_path: Path, path: str) -> None:
    with serving(recorded(tmp_path / "t.db", CALLS[:1])) as url:
        root = url.rsplit("/", 2)[0]
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{root}/{path}")


def test_nothing_is_kept_by_a_cache_or_told_to_another_site(tmp_path: Path) -> None:
    with serving(recorded(tmp_path / "t.db", CALLS[:1])) as url:
        headers = urllib.request.urlopen(url).headers
    assert (headers["cache-control"], headers["referrer-policy"]) == ("no-store", "no-referrer")


def test_a_database_that_is_not_there_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        PageServer(tmp_path / "none.db", LivePage())


def test_a_port_that_is_taken_is_one_line(tmp_path: Path) -> None:
    db = recorded(tmp_path / "t.db", CALLS[:1])
    with serving(db) as url, pytest.raises(LaunchError, match=r"page: expected a free port, got .* on 127\.0\.0\.1:"):
        PageServer(db, LivePage(), port=int(url.split(":")[2].split("/")[0]))


def memorywalker(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "memorywalker", *words], capture_output=True, text=True, timeout=60)


def test_the_command_writes_a_file(tmp_path: Path) -> None:
    db = recorded(tmp_path / "t.db", CALLS)
    done = memorywalker("page", "8f42", "--db", str(db), "--out", str(tmp_path / "tree.html"))
    assert done.stdout == f"10 calls of 1 session in {tmp_path / 'tree.html'}\n"
    assert '"kind":"summarized"' in (tmp_path / "tree.html").read_text()


def test_a_file_and_a_port_are_wrong_usage(tmp_path: Path) -> None:
    done = memorywalker("page", "--out", "x.html", "--port", "1", "--db", str(tmp_path / "t.db"))
    assert (done.returncode, done.stderr) == (
        2,
        "memorywalker: expected --out, which writes a file, or --port, which serves; got both\n",
    )


def test_the_command_serves_until_interrupted(tmp_path: Path) -> None:
    db = recorded(tmp_path / "t.db", CALLS[:1])
    words = [sys.executable, "-m", "memorywalker", "page", "--db", str(db)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout
        assert server.stderr
        url = server.stdout.readline().split()[1]
        assert b'"number":"1"' in urllib.request.urlopen(url).read()
        server.send_signal(2)
        assert server.wait(20) == 130
        assert server.stderr.read() == ""


@pytest.mark.live
@pytest.mark.skipif(shutil.which("chromium") is None, reason="expected Debian's chromium on PATH, found none")
def test_a_browser_shows_a_call_that_comes_later_and_keeps_its_place(tmp_path: Path) -> None:
    from playwright.sync_api import sync_playwright

    many = [replace(c, source=f"x#{i}") for i, c in enumerate(CALLS[:6] * 10)]
    db = recorded(tmp_path / "t.db", many)
    with serving(db) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 600})
        errors: list[str] = []
        page.on("console", lambda m: errors.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda e: errors.append(str(e)))
        page.goto(f"{url}#call=6&view=context")
        page.wait_for_selector(".live[data-state=on]")
        page.evaluate("document.querySelector('.detail .page').scrollTop = 120")
        page.evaluate("document.querySelector('.calls').scrollTop = 200")
        before = page.evaluate("document.querySelector('.detail .page').innerText")
        recorded(db, CALLS[6:7])
        page.wait_for_selector(".pill:not([hidden])")
        assert page.inner_text(".pill") == "1 new call ↓"
        assert page.get_attribute("[role=option]", "aria-setsize") == "61"
        assert page.evaluate("document.querySelector('.detail .page').scrollTop") == 120
        assert page.evaluate("document.querySelector('.calls').scrollTop") == 200
        assert page.evaluate("document.querySelector('.detail .page').innerText") == before
        page.click(".pill")
        page.wait_for_selector("#row60.chosen")
        browser.close()
    assert errors == []
