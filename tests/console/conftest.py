"""A real Chromium, Debian's, in front of a console that is served from a thread; both for one module."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from uuid import UUID

import httpx
import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from tests.support.console import Stand, standing
from tests.support.environment import DatabaseUrls
from tests.support.system import missing

# Two cores may have to do with other things meanwhile.
expect.set_options(timeout=20_000)
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def stand(database_urls: DatabaseUrls) -> Iterator[Stand]:
    """API, console and a worker."""
    with standing(database_urls) as started:
        yield started


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's browser; none is fetched from elsewhere."""
    program = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if program is None:
        missing("Chromium", "chromium")
    # Of a module and not of the session: while it is there, no other test of this process can have a loop.
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield launched
        launched.close()


@dataclass(slots=True)
class Desk:
    """Somebody at the console: a page that is signed in, the API with the same key, and what the browser complained of."""

    page: Page
    api: httpx.Client
    tenant_id: UUID
    url: str
    complaints: list[str] = field(default_factory=list[str])

    def open(self, path: str) -> Page:
        """Go to a page of the console."""
        self.page.goto(self.url + path)
        return self.page

    def start(self, workflow: str = "anything", **body: object) -> str:
        """Start a run over the API and return its id."""
        answer = self.api.post("/v1/runs", json={"workflow": workflow, "input": {}, **body})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def run(self, run_id: str, wait: int = 0) -> dict[str, object]:
        """Look at a run over the API; with `wait`, when it is over."""
        shown: dict[str, object] = self.api.get(f"/v1/runs/{run_id}", params={"wait": wait} if wait else {}).json()
        return shown


@pytest.fixture
def desk_of(stand: Stand, browser: Browser) -> Iterator[Callable[..., Desk]]:
    """Make a desk with a tenant of its own; keyword arguments are the browser context's."""
    desks: list[Desk] = []

    def make(**options: object) -> Desk:
        tenant_id = stand.tenant()
        key = stand.key(tenant_id, name="ops laptop")
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 860}, **options})  # type: ignore[arg-type]
        context.set_default_timeout(15_000)
        desk = Desk(context.new_page(), stand.client(key), tenant_id, stand.url)
        desks.append(desk)

        def hear(message: ConsoleMessage) -> None:
            if message.type in {"error", "warning"}:
                desk.complaints.append(message.text)

        desk.page.on("console", hear)
        desk.page.on("pageerror", lambda error: desk.complaints.append(str(error)))
        desk.open("/console")
        desk.page.fill("#key", key)
        desk.page.press("#key", "Enter")
        desk.page.wait_for_selector("nav[aria-label=Console]")
        return desk

    yield make
    for desk in desks:
        desk.page.context.close()


@pytest.fixture
def desk(desk_of: Callable[..., Desk]) -> Desk:
    """A desk with a tenant of its own."""
    return desk_of()
