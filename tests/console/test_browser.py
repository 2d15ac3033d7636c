"""The console in a real browser: signing in, watching, starting, signalling, cancelling; by hand, by key, on a phone."""

import re
import time
from collections import Counter
from typing import Any

import psycopg
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect
from psycopg.types.json import Json

from tests.support.console import HOSTILE, Stand

# What is under test is all of WCAG 2.2 AA that a program can see, and more.
AXE = {
    "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
    "resultTypes": ["violations"],
}
# What the colours of the dark change.
CONTRAST = {"runOnly": ["color-contrast"], "resultTypes": ["violations"]}
AXE_SCRIPT = Axe()
# What is wider than the box that hides the rest of it, but for lines that end in an ellipsis.
CUT_OFF = """[...document.querySelectorAll('main *')].filter((each) => {
  const style = getComputedStyle(each);
  return each.scrollWidth > each.clientWidth + 1 && each.clientWidth > 1 && style.overflowX === 'hidden'
    && style.textOverflow !== 'ellipsis';
}).map((each) => `${each.tagName}.${each.className}`)"""
# What a table consists of for those who hear it, as the browser calls it.
TABLE_ROLES = ("table", "row", "cell", "columnheader", "rowheader")
PHONE = 390
EVENTS = 10_000
ORDER = {"order_id": "A-1", "total": 120}


def check(page: Page, where: str, rules: dict[str, list[str]] = AXE) -> None:
    """Fail with what axe finds."""
    found = AXE_SCRIPT.run(page, options=rules)
    violations = [
        f"{where}: {each['id']}: {node['target']}: {node['failureSummary']}"
        for each in found.response["violations"]
        for node in each["nodes"]
    ]
    assert violations == [], "\n".join(violations)


def heard(page: Page) -> Counter[str]:
    """Return what of tables the browser tells those who hear the page, by role."""
    session = page.context.new_cdp_session(page)
    nodes = session.send("Accessibility.getFullAXTree")["nodes"]
    session.detach()
    roles = Counter(str(node["role"]["value"]) for node in nodes if not node["ignored"])
    return Counter({role: roles[role] for role in TABLE_ROLES if roles[role]})


def test_signing_in_and_out(desk: Any) -> None:
    page = desk.page
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    expect(page.locator(".who")).to_contain_text("Northwind Stationery")
    cookies = {each["name"]: each for each in page.context.cookies()}
    session = cookies["tenantry_console"]
    assert (session["httpOnly"], session["sameSite"]) == (True, "Lax")
    assert page.evaluate("document.cookie") == ""
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
    page.go_back()
    page.reload()
    expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
    page.fill("#key", "tny_wrong")
    page.press("#key", "Enter")
    expect(page.get_by_role("alert")).to_contain_text("not accepted")


def test_a_run_is_started_watched_and_signalled(desk: Any) -> None:
    page = desk.open("/console/workflows/orders/start")
    page.get_by_label("Order Id").fill("A-7")
    page.get_by_label("Total").fill("250")
    page.get_by_label("Street").fill("1 Main St")
    page.get_by_role("button", name="Start the run").click()
    expect(page.get_by_role("status").filter(has_text="The run was started.")).to_be_visible()
    # Nobody reloads: the page keeps itself true.
    waiting = page.get_by_role("region", name="Why is it waiting?")
    expect(waiting).to_contain_text("waits for a signal")
    expect(page.locator(".lines")).to_contain_text("Approval and payment")
    waiting.get_by_role("link", name="Signal…").click()
    expect(page.get_by_label("Step")).to_have_value("approval")
    page.get_by_label("Payload").fill('{"by": "ada"}')
    page.get_by_role("button", name="Send the signal").click()
    # Not sent before it is confirmed.
    assert "/signal" in page.url
    page.get_by_label("Send this signal for good").check()
    page.get_by_role("button", name="Send the signal").click()
    expect(page.locator("h1 .status")).to_have_text("Completed")
    expect(page.locator("#run-output")).to_contain_text('"ada"')
    expect(page.locator("#run-events")).to_contain_text("workflow:completed")
    expect(waiting).to_have_count(0)
    assert desk.complaints == []


def test_a_run_is_cancelled_after_a_question(desk: Any) -> None:
    run = desk.start(run_at="2999-01-01T00:00:00Z")
    page = desk.open(f"/console/runs/{run}")
    expect(page.get_by_role("region", name="Why is it waiting?")).to_contain_text("start later")
    page.get_by_role("link", name="Cancel…").click()
    page.get_by_label("Reason").fill("by mistake")
    assert desk.run(run)["status"] == "PENDING"
    page.get_by_role("button", name="Cancel the run").click()
    expect(page.locator("h1 .status")).to_have_text("Cancelled")
    assert desk.run(run)["status"] == "CANCELLED"


def test_a_run_that_failed_is_redriven(desk: Any) -> None:
    run = desk.start("orders", input={"order_id": "A-2", "total": 666})
    assert desk.run(run, wait=20)["status"] == "FAILED"
    page = desk.open(f"/console/runs/{run}")
    page.get_by_role("link", name="Redrive…").click()
    page.get_by_role("button", name="Redrive the run").click()
    expect(page.get_by_role("status").filter(has_text="The run goes on.")).to_be_visible()
    # The stage fails no more: it did so in its first attempt alone.
    expect(page.get_by_role("region", name="Why is it waiting?")).to_contain_text("waits for a signal")
    expect(page.locator("#run-state")).to_contain_text("Redrives")
    assert desk.complaints == []


def test_the_list_is_filtered_by_its_address_and_follows_what_happens(desk: Any) -> None:
    failed = desk.start(input={"fail": "no"}, tags=["one"])
    done = desk.start(tags=["one", "two"])
    desk.run(failed, wait=20)
    desk.run(done, wait=20)
    page = desk.open("/console/runs")
    rows = page.locator("[data-row]")
    expect(rows).to_have_count(2)
    page.get_by_role("navigation", name="Status").get_by_role("link", name="Failed").click()
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("Terminal: no")
    assert "status=FAILED" in page.url
    page.go_back()
    page.get_by_label("Tag").fill("two")
    page.get_by_role("button", name="Filter").click()
    expect(rows).to_have_count(1)
    assert "tag=two" in page.url
    # A run that comes later appears by itself, where it fits the filter.
    later = desk.start(tags=["two"])
    expect(page.locator(f"#row-{later} .status")).to_have_text("Completed")
    assert desk.complaints == []


def test_keys_do_everything(desk: Any) -> None:
    first, second = desk.start(), desk.start()
    desk.run(second, wait=20)
    page = desk.open("/console/runs")
    page.keyboard.press("j")
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement.getAttribute('href')") == f"/console/runs/{first}"
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(second))
    page.keyboard.press("g")
    page.keyboard.press("w")
    expect(page.get_by_role("heading", level=1)).to_have_text("Workflows")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.get_by_label("Single keys do something").uncheck()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_hidden()
    page.keyboard.press("Tab")
    page.reload()
    page.keyboard.press("Tab")
    expect(page.locator(":focus")).to_have_text("To the content")
    # A box is a stop where there is something to scroll to, and no other one is.
    table = page.get_by_role("region", name="Versions of orders")
    expect(table).to_have_attribute("tabindex", "-1")
    table.evaluate("(box) => { box.firstElementChild.innerHTML += '<tr><td>' + 'x'.repeat(400) + '</td></tr>'; }")
    page.set_viewport_size({"width": 1270, "height": 860})
    expect(table).to_have_attribute("tabindex", "0")


def test_texts_of_tenants_do_nothing(desk: Any) -> None:
    run = desk.start(input={"fail": HOSTILE, HOSTILE: HOSTILE}, tags=[HOSTILE[:64]])
    desk.run(run, wait=20)
    for path in ("/console/runs", f"/console/runs/{run}", f"/console/runs/{run}/stage?id=say", f"/console/runs/{run}/events",
                 f"/console/workflows/anything/start?like={run}"):  # fmt: skip
        page = desk.open(path)
        expect(page.locator("main")).to_contain_text("<script>" if "start" not in path else "Start a run")
        assert page.evaluate("window.pwned") is None
    assert desk.complaints == []


def test_nothing_but_our_own_files_is_loaded_and_the_policy_bites(desk: Any) -> None:
    asked: list[str] = []
    desk.page.on("request", lambda request: asked.append(request.url))
    page = desk.open("/console/runs")
    assert {url.split("/console")[0] for url in asked} == {desk.url}
    page.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.pwned = 1'}))"
    )
    assert page.evaluate("window.pwned") is None
    assert any("Content Security Policy" in each for each in desk.complaints)


@pytest.fixture(scope="module")
def long_run(stand: Stand) -> tuple[str, str]:
    """Return a key and a run with ten thousand events, most of them progress."""
    tenant_id = stand.tenant("Long Haul")
    key = stand.key(tenant_id)
    api = stand.client(key)
    run_id = api.post("/v1/runs", json={"workflow": "orders", "input": ORDER, "run_at": "2999-01-01T00:00:00Z"}).json()[
        "id"
    ]
    with psycopg.connect(stand.urls.direct, autocommit=True) as root:
        root.execute(
            "insert into tenantry.outbox_events (tenant_id, run_id, sequence, type, stage_id, payload, occurred_at)"
            " select %(tenant)s, %(run)s, n, case n %% 1000 when 2 then 'stage:started' when 3 then 'stage:retrying'"
            " else 'stage:progress' end, 'price', json_build_object('fraction', n / 10000.0, 'attempt', n / 1000 + 1),"
            " now() + n * interval '1 second' from generate_series(2, %(events)s) as n",
            {"tenant": tenant_id, "run": run_id, "events": EVENTS},
        )
        root.execute(
            "update tenantry.workflow_runs set event_sequence = %s, status = 'RUNNING', ready = false, started_at = now()"
            " where run_id = %s",
            (EVENTS, run_id),
        )
        root.execute(
            "insert into tenantry.workflow_stages (tenant_id, run_id, stage_id, group_number, number, status, attempt,"
            " max_attempts, started_at) values (%s, %s, 'price', 1, 1, 'RUNNING', 10, 20, now())",
            (tenant_id, run_id),
        )
        root.execute(
            "insert into tenantry.workflow_steps (tenant_id, run_id, stage_id, step_id, seq, kind, status, result, created_at)"
            " select %s, %s, 'price', 'step-' || n, n, 'run', 'completed', '{}', now() + n * interval '1 second'"
            " from generate_series(1, 500) as n",
            (tenant_id, run_id),
        )
    return key, run_id


def test_a_run_with_ten_thousand_events_opens_in_two_seconds(desk_of: Any, long_run: tuple[str, str]) -> None:
    desk = desk_of()
    key, run_id = long_run
    desk.page.get_by_role("button", name="Sign out").click()
    desk.page.fill("#key", key)
    desk.page.press("#key", "Enter")
    desk.page.wait_for_selector("nav[aria-label=Console]")
    took: list[float] = []
    for _ in range(3):
        began = time.monotonic()
        page = desk.open(f"/console/runs/{run_id}")
        expect(page.locator("#run-events")).to_contain_text(str(EVENTS))
        took.append(time.monotonic() - began)
        page.goto("about:blank")
    assert min(took) < 2, took
    # All of it is there to be leafed through.
    page = desk.open(f"/console/runs/{run_id}/events")
    expect(page.get_by_role("heading", level=1)).to_contain_text("10,000")
    expect(page.locator(".events tr:has(td)")).to_have_count(200)
    page.get_by_role("link", name="Next").click()
    expect(page.locator(".events tr:has(td)").first).to_contain_text("201")
    page.get_by_role("link", name="Stages").click()
    expect(page.locator(".events tr:has(td)")).to_have_count(20)


def try_again(stand: Stand, tenant_id: Any, run_id: str) -> None:
    """Have a run's step look as if it had failed twice, its third attempt having come to its end."""
    with psycopg.connect(stand.urls.direct, autocommit=True) as root:
        root.execute(
            "update tenantry.workflow_steps set attempt = 3, completed_at = created_at + interval '5 s' where run_id = %s"
            " and step_id = 'quote'",
            (run_id,),
        )
        root.execute(
            "insert into tenantry.spans (tenant_id, run_id, start_time, span_id, trace_id, name, kind, end_time, status, attributes)"
            " select tenant_id, run_id, created_at + (n - 1) * interval '2 s', 's' || n, 't', 'step.run quote', 'INTERNAL',"
            " created_at + (n - 0.5) * interval '2 s', case when n < 3 then 'ERROR' else 'UNSET' end, json_build_object('tenantry.op',"
            " 'step.run', 'tenantry.stage', stage_id, 'tenantry.step', step_id, 'tenantry.step.attempt', n, 'error.type', 'OSError')"
            " from tenantry.workflow_steps, generate_series(1, 3) as n where tenant_id = %s and run_id = %s and step_id = 'quote'",
            (tenant_id, run_id),
        )


def test_pages_are_accessible_and_readable_on_a_phone(desk_of: Any, stand: Stand) -> None:
    desk = desk_of()
    failed = desk.start("orders", input={"order_id": "A-2", "total": 666}, tags=["shop"])
    waiting = desk.start("orders", input=ORDER, config={"price": {"vat": 0.1}})
    later = desk.start(run_at="2999-01-01T00:00:00Z")
    desk.run(failed, wait=20)
    page = desk.open(f"/console/runs/{waiting}")
    expect(page.get_by_role("region", name="Why is it waiting?")).to_contain_text("waits for a signal")
    try_again(stand, desk.tenant_id, waiting)
    paths = [
        "/console", "/console/runs", f"/console/runs/{failed}", f"/console/runs/{waiting}", f"/console/runs/{later}",
        f"/console/runs/{waiting}/stage?id=approve", f"/console/runs/{failed}/events", f"/console/runs/{failed}/logs",
        f"/console/runs/{waiting}/cancel", f"/console/runs/{waiting}/signal", f"/console/runs/{failed}/redrive",
        f"/console/runs/{failed}/trace", f"/console/runs/{failed}/annotations", f"/console/runs/{waiting}/steps",
        "/console/workflows", "/console/workflows/orders", "/console/workflows/orders/start", "/console/workers", "/console/keys",
        "/console/nothing", "/console/usage",
    ]  # fmt: skip
    expect(desk.open("/console/runs").locator(f"#row-{waiting}")).to_contain_text("approve: waits for a signal")
    for path in paths:
        page = desk.open(path)
        check(page, path)
        for width in (PHONE, 320):
            page.set_viewport_size({"width": width, "height": 844})
            if width == PHONE:
                check(page, f"{path} on a phone")
            # Nothing sticks out, and nothing is cut off: a page scrolls one way only.
            assert page.evaluate("document.documentElement.scrollWidth") <= width, path
            assert page.evaluate(CUT_OFF) == [], (path, width)
        page.set_viewport_size({"width": 1280, "height": 860})
    # In the dark the same with other colours: where there are most of them.
    page.emulate_media(color_scheme="dark")
    for path in ("/console", "/console/runs", f"/console/runs/{failed}", f"/console/runs/{waiting}", "/console/keys",
                 f"/console/runs/{waiting}/steps"):  # fmt: skip
        check(desk.open(path), f"{path} in the dark", CONTRAST)
        page.set_viewport_size({"width": PHONE, "height": 844})
        check(page, f"{path} in the dark on a phone", CONTRAST)
        page.set_viewport_size({"width": 1280, "height": 860})
    page.get_by_role("button", name="Sign out").click()
    check(page, "sign in")


def test_all_tables_are_read_on_a_phone_without_scrolling_sideways(desk_of: Any) -> None:
    desk = desk_of(viewport={"width": 390, "height": 844})
    run = desk.start("orders", input={"order_id": "A-2", "total": 666}, tags=["t" * 64])
    desk.run(run, wait=20)
    for path in ("/console", f"/console/runs/{run}", f"/console/runs/{run}/stage?id=stock", f"/console/runs/{run}/steps",
                 "/console/workflows", "/console/workers", "/console/keys"):  # fmt: skip
        page = desk.open(path)
        wide = page.locator(".scroll").evaluate_all(
            "(all) => all.filter((each) => each.scrollWidth > each.clientWidth).length"
        )
        assert wide == 0, path


def test_tables_that_are_laid_out_anew_on_a_phone_are_heard_as_tables(desk: Any) -> None:
    run = desk.start("orders", input={"order_id": "A-2", "total": 666})
    desk.run(run, wait=20)
    for path in (f"/console/runs/{run}", f"/console/runs/{run}/stage?id=credit", f"/console/runs/{run}/trace", "/console",
                 "/console/runs", "/console/workflows/orders", "/console/workers", "/console/keys"):  # fmt: skip
        page = desk.open(path)
        on_a_desk = heard(page)
        page.set_viewport_size({"width": PHONE, "height": 844})
        assert heard(page) == on_a_desk, path
        page.set_viewport_size({"width": 1280, "height": 860})
        # What is in the page is in what is heard.
        assert on_a_desk["row"] == page.locator("tr").count(), path
        assert on_a_desk.total() - on_a_desk["row"] - on_a_desk["table"] == page.locator("th, td").count(), path


def test_pages_do_not_jump_when_they_bring_themselves_up_to_date(desk: Any) -> None:
    run = desk.start("orders", input=ORDER)
    page = desk.open(f"/console/runs/{run}")
    expect(page.get_by_role("region", name="Why is it waiting?")).to_be_visible()
    page.evaluate(
        "window.shift = 0; new PerformanceObserver((list) => list.getEntries().forEach((each) => { window.shift += each.value; }))"
        ".observe({ type: 'layout-shift', buffered: false })"
    )
    page.get_by_role("link", name="Approval and payment").focus()
    replaced = page.evaluate(
        "new Promise((done) => new MutationObserver(() => done(true)).observe(document.querySelector('main'), {childList: true, subtree: true}))"
    )
    assert replaced
    assert page.evaluate("window.shift") < 0.05
    # Who had a place in the page keeps it.
    assert page.evaluate("document.activeElement.textContent") == "Approval and payment"


LONG = "x" * 255
TURNED = "\u202edesrever si siht"
# What bodies may say: what never breaks, what is markup, what turns around what follows it, what needs more than a character.
SAYINGS = (LONG, HOSTILE, TURNED, "\U0001f9e8" * 90, "a\u0301" * 120, "one\ntwo\r\n\tthree", "Z" * 4_000)


def say_everything(stand: Stand, tenant_id: Any, run_id: str) -> None:
    """Have the body of a run's stage say everything that texts may be, wherever it may say something."""
    with psycopg.connect(stand.urls.direct, autocommit=True) as root, root.cursor() as cursor:
        for number, saying in enumerate(SAYINGS):
            of_run = {
                "tenant": tenant_id,
                "run": run_id,
                "n": number,
                "saying": saying,
                "short": saying[:255],
                "json": Json(saying),
            }
            cursor.execute(
                "insert into tenantry.workflow_logs (tenant_id, run_id, stage_id, attempt, level, message, fields)"
                " values (%(tenant)s, %(run)s, 'say', 2, 'error', %(saying)s, json_build_object(%(short)s::text, %(json)s::json))",
                of_run,
            )
            cursor.execute(
                "insert into tenantry.workflow_annotations (tenant_id, run_id, stage_id, attempt, key, value, payload)"
                " values (%(tenant)s, %(run)s, 'say', 2, %(short)s, %(json)s, json_build_object(%(short)s::text, %(json)s::json))",
                of_run,
            )
            cursor.execute(
                "insert into tenantry.workflow_steps (tenant_id, run_id, stage_id, step_id, seq, kind, status, attempt, error,"
                " created_at, completed_at) values (%(tenant)s, %(run)s, 'say', %(short)s, 100 + %(n)s, 'run', 'failed', 3,"
                " %(saying)s, now(), now() + interval '9 s')",
                of_run,
            )
            cursor.execute(
                "insert into tenantry.spans (tenant_id, run_id, start_time, span_id, parent_span_id, trace_id, name, kind, end_time,"
                " status, attributes) values (%(tenant)s, %(run)s, now() + %(n)s * interval '1 s', 's' || %(n)s,"
                " case when %(n)s > 0 then 's' || (%(n)s - 1) end, repeat('f', 32), %(short)s, 'INTERNAL',"
                " now() + 9 * interval '1 s', 'ERROR', json_build_object('error.type', %(short)s::text, %(short)s::text, %(json)s::json,"
                " 'tenantry.op', 'step.run', 'tenantry.stage', 'say', 'tenantry.step', %(short)s::text, 'tenantry.step.attempt', 2))",
                of_run,
            )


def test_whatever_bodies_say_can_be_read_on_a_phone(desk_of: Any, stand: Stand) -> None:
    desk = desk_of(viewport={"width": PHONE, "height": 844})
    run = desk.start(input={"fail": "\n".join(SAYINGS)})
    desk.run(run, wait=20)
    say_everything(stand, desk.tenant_id, run)
    for below in ("", "/stage?id=say", "/steps", "/logs", "/events", "/annotations", "/trace"):
        page = desk.open(f"/console/runs/{run}{below}")
        page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
        check(page, f"{below} on a phone")
        for width in (PHONE, 320):
            page.set_viewport_size({"width": width, "height": 844})
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (below, width)
            assert page.evaluate(CUT_OFF) == [], (below, width)
        assert page.evaluate("window.pwned") is None
        page.set_viewport_size({"width": PHONE, "height": 844})
    assert desk.complaints == []


def test_a_text_that_runs_from_right_to_left_turns_nothing_around_but_itself(desk: Any, stand: Stand) -> None:
    run = desk.start()
    desk.run(run, wait=20)
    say_everything(stand, desk.tenant_id, run)
    for below, row, text, following in (
        ("/trace", ".span", ".name", ".kind"),
        ("/logs", ".log tr", "td:last-child > :first-child", "td:last-child > .muted"),
    ):
        place = desk.open(f"/console/runs/{run}{below}").locator(row, has_text=TURNED).first
        written, after = (place.locator(part).first.bounding_box() for part in (text, following))
        assert written["x"] + written["width"] <= after["x"], below
