"""Debian's Chromium, and a checker of what everybody can use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright

CHROMIUM = "/usr/bin/chromium"
# As root there is no sandbox; the others keep it from looking for Google's hosts.
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
Scheme = Literal["light", "dark"]
SERIOUS = {"serious", "critical"}


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def page_in(browser: Browser, scheme: Scheme = "light", *, strict: bool = True) -> Iterator[Page]:
    """A page; ``strict``: no error in its console, no request elsewhere."""
    with browser.new_context(
        viewport={"width": 1280, "height": 800}, color_scheme=scheme
    ) as context:
        page = context.new_page()
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        yield page
        assert not strict or errors == [], errors
        assert not strict or not [
            url for url in asked if not url.startswith(("http://127.0.0.1:", "data:"))
        ]


def serious_findings(page: Page) -> list[str]:
    """What axe finds that keeps people from using the page, each with where."""
    found = Axe().run(page).response["violations"]
    return [
        f"{each['id']}: {[node['html'][:160] for node in each['nodes'][:3]]}"
        for each in found
        if each["impact"] in SERIOUS
    ]
