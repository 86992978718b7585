"""The report in a real Chromium without a network."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

pytestmark = [pytest.mark.browser, pytest.mark.clients, pytest.mark.timeout(600)]

SECTIONS = (
    *("Three verdicts, kept apart", "What ran", "Performance", "Evaluations"),
    *("Memory and layout", "Timeline", "Every check", "Provenance"),
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        yield chromium
        chromium.close()


@pytest.fixture
def seen() -> list[str]:
    """Requests beyond the file itself, console errors and page errors."""
    return []


@pytest.fixture
def open_report(browser: Browser, quickstart_run: Any, seen: list[str]) -> Iterator[Any]:
    contexts = []

    def open_page(width: int = 1280, scheme: Any = "light") -> Page:
        context = browser.new_context(
            offline=True, viewport={"width": width, "height": 900}, color_scheme=scheme
        )
        contexts.append(context)
        page = context.new_page()
        address = (quickstart_run.folder.path / "report.html").as_uri()
        page.on("request", lambda r: seen.append(r.url) if r.url != address else None)
        page.on("console", lambda m: seen.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: seen.append(str(error)))
        page.goto(address)
        return page

    yield open_page
    for context in contexts:
        context.close()


def test_the_report_opens_offline_and_asks_for_nothing(open_report: Any, seen: list[str]) -> None:
    page = open_report()
    headings = page.locator("h2").all_inner_texts()
    assert headings == list(SECTIONS)
    assert seen == []


def test_the_first_sentence_says_what_the_run_proved(open_report: Any) -> None:
    assert open_report().locator("h1").inner_text() == (
        "Integration complete; quality not applicable to this model (random weights)"
    )


def test_every_chart_is_drawn(open_report: Any) -> None:
    page = open_report()
    charts = page.locator("figure svg")
    assert charts.count() == 5
    for i in range(5):
        box = charts.nth(i).bounding_box()
        assert box is not None
        assert box["width"] > 200
        assert box["height"] > 80


def test_a_case_opens_to_what_was_asked_and_answered(open_report: Any) -> None:
    page = open_report()
    case = page.locator(".case", has_text="simple_python_141")
    assert case.locator(".pill").count() == 2
    case.locator("summary").first.click()
    assert case.get_by_text("Accepted", exact=True).is_visible()


@pytest.mark.parametrize("width", [400, 1280, 3840])
def test_nothing_is_cut_off_at_any_width(width: int, open_report: Any) -> None:
    page = open_report(width)
    overflow = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    assert overflow <= 0


def test_dark_is_dark(open_report: Any) -> None:
    def paper(scheme: str) -> int:
        page = open_report(scheme=scheme)
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(int(part) for part in colour.strip("rgb()").split(","))

    assert paper("dark") < 150 < 600 < paper("light")


def test_the_page_can_be_walked_by_keyboard(open_report: Any) -> None:
    page = open_report()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('href')") == "#verdicts"
