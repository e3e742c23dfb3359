"""The page in a real browser: what a reader clicks, types, sees; and that it asks for nothing and lets nothing run."""

import random
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from recording import Recording, result, said
from simulate import CAPTURES, EDITS, simulate, text, tree_of

from recorder.importing import read_har
from recorder.message import Block, Head, Message
from treebuilder.build import build
from treebuilder.page import write
from treebuilder.tree import Trajectory

CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(CHROMIUM is None, reason="expected Debian's chromium on PATH, found none"),
]
WIDE, NARROW = {"width": 1280, "height": 800}, {"width": 390, "height": 844}
OPEN_LIMIT_S = 3.0
"""For a page of 1,000 calls, until its rows can be seen: 0.7 to 1.4 s on two busy cores."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """compacted: Claude Code; cleared: OpenCode; rewound: OpenCode; many: several sessions, agents among them."""
    folder = tmp_path_factory.mktemp("pages")
    for name, sources in {
        "compacted": ["claude-code/autocompact"],
        "cleared": ["opencode/prune_anthropic"],
        "rewound": ["opencode/serve_revert_anthropic"],
        "counted": ["claude-code/manualcompact"],
        "many": ["claude-code/autocompact", "claude-code/subagent", "opencode/prune_anthropic"],
    }.items():
        write(tree(*sources), folder / f"{name}.html")
    write(long_session(), folder / "long.html")
    write(hostile_session(), folder / "hostile.html")
    write(switching_session(), folder / "switching.html")
    image = Recording()
    image.send(Message("user", (Block("image", "b2:1", "image/png"), Block("image", "b2:2", "image/png"))))
    write(image.tree, folder / "image.html", images={"b2:1": PIXEL})
    return folder


def tree(*names: str) -> Trajectory:
    calls = [call for name in names for call in read_har(CAPTURES / f"{name}.har")]
    return build(replace(call, seq=i + 1) for i, call in enumerate(calls))


def long_session() -> Trajectory:
    rng = random.Random(1)
    steps = simulate(1, [rng.choice((*EDITS, *["append"] * 10)) for _ in range(900)])
    for i, step in enumerate(steps):
        step.prepared = replace(step.prepared, call=replace(step.prepared.call, seq=i + 1, started_at_utc=1e9 + i))
    return tree_of(steps)


HOSTILE = "</script></pre><img src='http://127.0.0.1:9/x' onerror='window.taken=1'><script>window.taken=1</script>"


def hostile_session() -> Trajectory:
    made = Recording()
    system = Head("<b>model</b>", (Block("text", HOSTILE),), ())
    call = Message("assistant", (Block("tool_call", '{"<img src=x>":"' + "</script>" + '"}', HOSTILE, "t1"),))
    made.send(text("user", HOSTILE), reply=call, head=system)
    made.send(text("user", HOSTILE), call, result("t1", HOSTILE + "\u2028\ud83d"), reply=said(HOSTILE), head=system)
    return made.tree


def switching_session() -> Trajectory:
    made = Recording()
    history = [text("user", "hello")]
    for model in ("large", "small", "small"):
        made.send(*history, reply=said(f"from {len(history)}"), head=Head(model, (), ()))
        history += [said(f"from {len(history)}"), text("user", f"go on {len(history)}")]
    return made.tree


PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5E"
    "rkJggg=="
)


class Opened:
    """A page, and everything that it did which nobody should see."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.requests: list[str] = []
        self.errors: list[str] = []
        page.on("request", lambda r: self.requests.append(r.url))
        page.on("console", lambda m: self.errors.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda e: self.errors.append(str(e)))
        page.goto(url)
        page.wait_for_selector(".row:not(.names)", state="attached")

    def close(self) -> None:
        """Nothing but the file itself, and images that it holds, was ever asked for."""
        self.page.close()
        assert self.errors == []
        assert [u for u in self.requests[1:] if not u.startswith("data:")] == []


@pytest.fixture
def opened(browser: Browser, files: Path) -> Iterator["Opener"]:
    opener = Opener(browser, files)
    yield opener
    for one in opener.pages:
        one.close()


class Opener:
    def __init__(self, browser: Browser, files: Path) -> None:
        self.browser, self.files = browser, files
        self.pages: list[Opened] = []

    def __call__(self, name: str, address: str = "", *, narrow: bool = False, dark: bool = False) -> Page:
        page = self.browser.new_page(
            viewport=NARROW if narrow else WIDE,  # type: ignore[arg-type]
            color_scheme="dark" if dark else "light",
            timezone_id="UTC",
        )
        self.pages.append(Opened(page, f"file://{self.files / name}.html{address}"))
        return page


def rows(page: Page) -> list[str]:
    return [row.get_attribute("aria-label") or "" for row in page.query_selector_all("[role=option]")]


def panel(page: Page) -> str:
    return page.inner_text(".detail")


def test_every_call_has_a_row_with_what_happened_and_how_much(opened: Opener) -> None:
    page = opened("compacted")
    assert rows(page)[3:6] == [
        "call 4, append, 10.7k characters, 49 came",
        "call 5, summary request, 16.3k characters, 5.6k came",
        "call 6, summarized, 10.1k characters, 10.4k left, 9.7k came",
    ]
    assert page.inner_text(".row:nth-child(6)").split("\n")[0] == "6"
    assert "21:26:48" in page.inner_text(".row:nth-child(6)")


def test_a_call_opens_the_context_that_the_model_had_and_what_it_sampled(opened: Opener) -> None:
    page = opened("compacted")
    page.click(".kindname:text-is('append') >> nth=0")
    assert "Call 2" in panel(page)
    assert page.locator(".messages > .message").count() == 4
    assert page.locator(".message.sampled .chip").inner_text() == "sampled now"
    assert "sampled in 1" in panel(page)
    assert page.evaluate("location.hash") == "#call=2"


def test_an_edit_opens_what_left_beside_what_came_with_kind_evidence_and_the_summary_call(opened: Opener) -> None:
    page = opened("compacted")
    page.click(".kindname:text-is('summarized')")
    told = panel(page)
    assert "− left: 10,410 characters" in told
    assert "+ came: 9,741 characters" in told
    assert "99 % sure" in told
    assert "Replies kept\n1 of 5, of call 4" in told
    assert "x-claude-code-context-compacted=auto" in told
    gone, came = page.locator(".side.gone").first.bounding_box(), page.locator(".side.came").first.bounding_box()
    assert gone
    assert came
    assert gone["y"] == came["y"]
    assert gone["x"] + gone["width"] < came["x"]
    page.click(".verdict a:has-text('call 5')")
    assert "Call 5" in panel(page)
    assert "FAKE SUMMARY" in page.inner_text(".message.sampled")


def test_a_cleared_result_is_shown_with_its_placeholder_in_place(opened: Opener) -> None:
    page = opened("cleared", "#call=8")
    assert "Replies kept\n6 of 6, of calls 2–7" in panel(page)
    assert page.inner_text(".sides > h3.gone").startswith("− left: 286,069 characters")
    sides = [page.query_selector_all(f".side.{name}")[:6] for name in ("gone", "came")]
    for gone, came in zip(*sides, strict=True):
        assert "tool result" in (gone.text_content() or "")
        assert "Show all" in (gone.text_content() or "")
        assert "[Old tool result content cleared]" in (came.text_content() or "")
        assert (gone.bounding_box() or {})["y"] == (came.bounding_box() or {})["y"]


def test_a_changed_span_is_marked_inside_its_block(opened: Opener) -> None:
    page = opened("rewound", "#call=5")
    assert page.inner_text("mark.came") == ", reworded"


def test_the_system_text_and_the_tools_can_be_read(opened: Opener) -> None:
    page = opened("compacted", "#call=1&view=head")
    page.click("summary:has(.toolname:text-is('Read'))")
    page.wait_for_selector(".message[open]:has(.toolname) >> text=properties")


def test_search_lists_hits_and_leads_to_the_message(opened: Opener) -> None:
    page = opened("compacted")
    page.keyboard.press("/")
    page.keyboard.type("fake summary")
    page.wait_for_selector(".hits a")
    found = page.inner_text(".results .note")
    assert "2 messages" in found
    page.keyboard.press("Enter")
    page.wait_for_selector(".message.sampled mark.hit")
    assert "Call 5" in panel(page)
    page.keyboard.press("Escape")
    page.wait_for_selector(".results", state="hidden")
    assert page.is_visible(".row.chosen")


def test_a_search_without_a_hit_says_so(opened: Opener) -> None:
    page = opened("compacted")
    page.fill("#search", "no (such* text")
    page.wait_for_selector("text=No message holds “no (such* text”")


def test_everything_can_be_done_from_the_keyboard(opened: Opener) -> None:
    page = opened("compacted")
    for key in ("j", "j", "ArrowDown", "k"):
        page.keyboard.press(key)
    assert page.evaluate("location.hash") == "#call=2"
    page.keyboard.press("e")
    assert page.evaluate("location.hash") == "#call=6"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.getAttribute('role')") == "tabpanel"
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.getAttribute('role')") == "listbox"
    assert page.get_attribute("[role=listbox]", "aria-activedescendant") == "row5"
    assert page.get_attribute("#row5", "aria-selected") == "true"
    outline = page.evaluate("getComputedStyle(document.querySelector('#row5')).outlineStyle")
    assert outline == "solid"
    page.keyboard.press("Escape")
    assert "This session" in panel(page)
    page.keyboard.press("?")
    assert page.is_visible("dialog.help")
    page.keyboard.press("Escape")
    assert not page.is_visible("dialog.help")
    page.keyboard.press("G")
    assert page.evaluate("location.hash") == "#call=10"


def test_views_change_by_arrow_as_tabs_do(opened: Opener) -> None:
    page = opened("compacted", "#call=6")
    page.focus("#tab-edit")
    page.keyboard.press("ArrowRight")
    assert page.get_attribute("#tab-head", "aria-selected") == "true"
    assert page.evaluate("document.activeElement.id") == "tab-head"


def test_an_address_leads_to_a_call_and_back_and_forth(opened: Opener) -> None:
    page = opened("many", "#call=12")
    assert "Call 12" in panel(page)
    page.click("a.card >> nth=0")
    page.click(".kindname:text-is('summarized')")
    page.go_back()
    page.go_back()
    assert "Call 12" in panel(page)


def test_sessions_are_listed_and_their_numbers_told(opened: Opener) -> None:
    page = opened("many")
    assert page.locator("a.card").count() == 3
    page.focus("a.card >> nth=2")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.getAttribute('aria-current')") == "true"
    told = panel(page)
    assert "Evicted, by kind" in told
    assert "cleared" in told
    assert "286k" in told


def test_where_there_is_no_room_for_models_a_switch_is_still_seen(opened: Opener) -> None:
    page = opened("switching")
    assert page.eval_on_selector_all(".othermodel", "all => all.map((one) => one.textContent)") == ["small"]
    assert "small" in page.inner_text("#row1")


def test_a_call_that_samples_nothing_says_so(opened: Opener) -> None:
    page = opened("counted", "#call=12")
    assert "count tokens" in panel(page)
    assert "Nothing was sampled." in panel(page)
    assert page.locator(".message.sampled").count() == 0


def test_everything_that_can_be_pressed_has_a_name(opened: Opener) -> None:
    page = opened("many", "#call=6")
    nameless = """() => [...document.querySelectorAll('button, input, a, [role=tab], [role=option], [role=listbox]')]
      .filter((one) => one.checkVisibility())
      .filter((one) => !one.getAttribute('aria-label') && !one.textContent.trim() && !(one.labels || []).length)
      .map((one) => one.outerHTML.slice(0, 80))"""
    assert page.evaluate(nameless) == []


def test_agents_have_lanes_of_their_own(opened: Opener) -> None:
    page = opened("many", "#call=11")
    assert page.locator("#row0 .lane").count() == 2  # the main line goes on, an agent leaves it
    assert {f"lane{n}" for n in range(3)} <= set(" ".join(
        page.eval_on_selector_all(".lane", "all => all.map((one) => one.getAttribute('class'))")
    ).split())  # fmt: skip


def test_every_kind_family_has_a_shape_of_its_own(opened: Opener) -> None:
    page = opened("compacted")
    page.keyboard.press("?")
    shapes = page.eval_on_selector_all(
        ".shapes svg", "all => all.map((one) => one.innerHTML.replace(/class=.*?k-\\w+./, ''))"
    )
    assert len(shapes) == 9
    assert len(set(shapes)) == 9


def test_runs_of_appends_fold_and_open_again(opened: Opener) -> None:
    page = opened("compacted")
    page.keyboard.press("f")
    assert [label.split(", ")[:2] for label in rows(page)] == [
        ["call 1", "root"],
        ["call 2 to 4", "3 appends"],
        ["call 5", "summary request"],
        ["call 6", "summarized"],
        ["call 7 to 10", "4 appends"],
    ]
    page.click(".kindname:text-is('3 appends')")
    assert len(rows(page)) == 7


def test_dark_follows_the_system_and_the_button(opened: Opener) -> None:
    def shade(page: Page) -> int:
        colour: str = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return int(colour.split("(")[1].split(",")[0])

    page = opened("compacted", dark=True)
    assert shade(page) < 40
    page.click(".theme")
    assert shade(page) > 200
    light = opened("compacted")
    assert shade(light) > 200
    light.keyboard.press("t")
    assert shade(light) < 40


CONTRAST = """() => {
  const parse = (c) => c.match(/[\\d.]+/g).map(Number);
  const lum = ([r, g, b]) => {
    const f = (v) => ((v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * f(r) + 0.7152 * f(g) + 0.0722 * f(b);
  };
  const poor = [];
  for (const one of document.querySelectorAll('body *')) {
    const own = [...one.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
    if (!own || !one.checkVisibility() || one.closest('script, style')) continue;
    let back = one;
    while (back && parse(getComputedStyle(back).backgroundColor)[3] === 0) back = back.parentElement;
    const style = getComputedStyle(one);
    const a = lum(parse(one instanceof SVGElement ? style.fill : style.color));
    const b = lum(parse(back ? getComputedStyle(back).backgroundColor : 'rgb(255,255,255)'));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) poor.push([one.className, one.textContent.slice(0, 30), ratio.toFixed(2)]);
  }
  return poor;
}"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_all_text_has_the_contrast_of_wcag_aa(opened: Opener, dark: bool) -> None:
    """4.5 to 1 between a text and the nearest background behind it."""
    page = opened("many", "#call=6", dark=dark)
    assert page.evaluate(CONTRAST) == []
    for address in ("#call=6&view=context", "#call=12&view=head", "#session=", "#call=34"):
        page.evaluate("(address) => { location.hash = address; }", address)
        page.wait_for_timeout(50)
        assert page.evaluate(CONTRAST) == []
    page.fill("#search", "tidal")
    page.wait_for_selector(".hits a")
    assert page.evaluate(CONTRAST) == []


@pytest.mark.parametrize("narrow", [False, True], ids=["1280", "390"])
@pytest.mark.parametrize("name", ["many", "long", "hostile"])
def test_nothing_is_wider_than_the_window(opened: Opener, narrow: bool, name: str) -> None:
    wider = """() => [...document.querySelectorAll(
      'html, body, main, section, header, .calls, .sessions, .page, .text, dd')]
      .filter((one) => one.checkVisibility() && one.scrollWidth > one.clientWidth + 1)
      .map((one) => one.tagName + '.' + one.className)"""
    page = opened(name, narrow=narrow)
    assert page.evaluate(wider) == []
    for view in ("context", "edit", "head"):
        page.evaluate("(address) => { location.hash = address; }", f"#call=2&view={view}")
        page.wait_for_timeout(50)
        assert page.evaluate(wider) == []


def test_a_narrow_screen_shows_one_thing_at_a_time(opened: Opener) -> None:
    page = opened("many", narrow=True)
    assert page.is_visible(".sessions")
    page.click("a.card >> nth=0")
    assert page.is_visible(".calls")
    assert not page.is_visible(".detail")
    page.click(".kindname:text-is('summarized')")
    assert page.is_visible(".detail")
    assert not page.is_visible(".calls")
    page.click(".back")
    assert page.is_visible(".calls")
    assert page.is_visible(".row.chosen")
    page.click("text=Statistics")
    assert "Evicted, by kind" in panel(page)
    page.click(".back")
    assert page.is_visible(".calls")
    assert opened("many", "#session=8f42102a-33ff-4414-b9b6-92a70b4f493f", narrow=True).is_visible(".calls")


def test_a_thousand_calls_open_at_once_and_only_the_rows_in_sight_exist(opened: Opener) -> None:
    started = time.monotonic()
    page = opened("long")
    took = time.monotonic() - started
    assert took < OPEN_LIMIT_S
    total = int(page.get_attribute("[role=option]", "aria-setsize") or 0)
    assert total >= 900
    assert page.locator(".row").count() < 60
    page.keyboard.press("G")
    page.wait_for_selector(f"[aria-posinset='{total}']")
    assert page.locator(".row").count() < 60
    slowest = page.evaluate("""async () => {
      const list = document.querySelector('.calls');
      let slowest = 0;
      for (let at = 0; at < 60; at++) {
        list.scrollTop = (at * 7919) % list.scrollHeight;
        const from = performance.now();
        await new Promise(requestAnimationFrame);
        slowest = Math.max(slowest, performance.now() - from);
      }
      return slowest;
    }""")
    assert slowest < 500  # ms, of 60 jumps: about 100 on two busy cores, 30 in the middle


def test_an_image_is_shown_where_its_data_is_known_and_named_where_not(opened: Opener) -> None:
    page = opened("image", "#call=1")
    assert page.eval_on_selector(".block img", "async (one) => { await one.decode(); return one.naturalWidth; }") == 1
    assert page.locator(".block img").count() == 1
    assert "b2:2" in panel(page)


def test_hostile_content_stays_text(opened: Opener) -> None:
    page = opened("hostile", "#call=1")
    assert "onerror" in page.inner_text(".detail")
    page.evaluate("location.hash = '#call=1&view=head'")
    page.wait_for_timeout(50)
    page.fill("#search", "window.taken")
    page.wait_for_selector(".hits a")
    assert page.evaluate("window.taken") is None
    assert page.locator("img").count() == 0
