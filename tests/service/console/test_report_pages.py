"""What a run reports on its pages: progress, annotations, superseded attempts; and payloads that are hostile."""

import json
import re
from datetime import UTC, datetime
from uuid import UUID

import httpx
import psycopg
import pytest

from tests.service.console.visiting import NOBODY, send, start
from tests.support.console import HOSTILE, SignIn


class TestReports:
    async def start_with(self, api: httpx.AsyncClient, superuser: psycopg.AsyncConnection, tenant: UUID) -> str:
        """A run whose stage `say` is in its second attempt, two fifths through, after a redrive took the first one back."""
        run = await start(api)
        archived = {
            "stage_id": "say", "status": "FAILED", "attempt": 1, "redrive_count": 0, "error": f"Terminal: {HOSTILE}",
            "completed_at": "2026-12-01T10:00:00+00:00", "external_keys": [{"step_id": "pay", "external_key": "key-of-pay"}],
        }  # fmt: skip
        notes = [
            (1, HOSTILE, HOSTILE, None), (1, "run.superseded_attempt", archived, {"output": 41}),
            (2, "run.superseded_attempt", "forged by a body", None), (2, "long", "x" * 100_000, None),
        ]  # fmt: skip
        for attempt, key, value, payload in notes:
            await superuser.execute(
                "insert into tenantry.workflow_annotations (tenant_id, run_id, stage_id, attempt, key, value, payload)"
                " values (%s, %s, 'say', %s, %s, %s, %s)",
                (tenant, run, attempt, key, json.dumps(value), None if payload is None else json.dumps(payload)),
            )
        await superuser.execute(
            "insert into tenantry.workflow_stages (tenant_id, run_id, stage_id, group_number, number, status, attempt,"
            " max_attempts, started_at) values (%s, %s, 'say', 1, 1, 'RUNNING', 2, 1, now())",
            (tenant, run),
        )
        for sequence, kind, data in (
            (2, "started", {"attempt": 1}), (3, "progress", {"fraction": 0.9, "message": "of the first"}),
            (4, "failed", {"attempt": 1, "error": "no"}), (5, "started", {"attempt": 2}),
            (6, "progress", {"fraction": 0.4, "message": HOSTILE}),
        ):  # fmt: skip
            await superuser.execute(
                "insert into tenantry.outbox_events (tenant_id, run_id, sequence, type, stage_id, payload)"
                " values (%s, %s, %s, %s, 'say', %s)",
                (tenant, run, sequence, f"stage:{kind}", json.dumps(data)),
            )
        await superuser.execute(
            "update tenantry.workflow_runs set event_sequence = 6, status = 'RUNNING', ready = false, redrive_count = 1,"
            " started_at = now() where run_id = %s",
            (run,),
        )
        return run

    @pytest.mark.parametrize("page", ["", "/stage?id=say"])
    async def test_progress_and_attempts_that_were_taken_back_are_shown(
        self, signed_in: SignIn, api: httpx.AsyncClient, superuser: psycopg.AsyncConnection, tenant: UUID, page: str
    ) -> None:
        run = await self.start_with(api, superuser, tenant)
        text = (await (await signed_in()).get(f"/console/runs/{run}{page}")).text
        (bar,) = re.findall(r"<progress [^>]*>[^<]*", text)
        assert 'value="0.4"' in bar
        assert bar.endswith("40 %")
        # Of the two annotations of redrives one is what a body made of the name: a note like any other.
        superseded = text.partition('id="superseded-title"')[2].partition("</section>")[0]
        assert (superseded.count("<tr "), "redrive 1" in superseded, "key-of-pay" in superseded) == (2, True, True)
        notes = text.partition('id="notes-title"')[2].partition("</section>")[0]
        assert re.findall(r'<tr role="row"( class="gone")?>\s+<td', notes) == [' class="gone"', "", ""]
        assert "forged by a body" in notes
        # Attempts are counted on while a redrive gives the whole budget again.
        assert "2 of 1" not in text
        assert "<script>window" not in text
        assert len(text) < 60_000

    async def test_what_is_cut_can_be_had_whole(
        self, signed_in: SignIn, api: httpx.AsyncClient, superuser: psycopg.AsyncConnection, tenant: UUID
    ) -> None:
        run = await self.start_with(api, superuser, tenant)
        client = await signed_in()
        page = (await client.get(f"/console/runs/{run}/annotations")).text
        (whole,) = re.findall(r'href="([^"]*of=value)" download', page)
        assert (await client.get(whole.replace("&amp;", "&"))).json() == "x" * 100_000
        for bad in (NOBODY, "x"):
            assert (await client.get(f"/console/runs/{run}/payload?of=value&note={bad}")).status_code == 404
        assert "Nothing was noted" in (await client.get(f"/console/runs/{run}/annotations?stage=nobody")).text

    async def test_the_last_log_lines_are_shown_and_those_of_a_stage(
        self, signed_in: SignIn, api: httpx.AsyncClient, superuser: psycopg.AsyncConnection, tenant: UUID
    ) -> None:
        run = await self.start_with(api, superuser, tenant)
        await superuser.execute(
            "insert into tenantry.workflow_logs (tenant_id, run_id, stage_id, attempt, level, message)"
            " select %s, %s, case when n = 1 then 'say' else 'other' end, 1, 'info', 'line <' || n || '>'"
            " from generate_series(1, 260) as n",
            (tenant, run),
        )
        client = await signed_in()
        text = (await client.get(f"/console/runs/{run}")).text
        assert re.findall(r"line &lt;(\d+)", text) == [str(number) for number in range(211, 261)]
        for path in ("stage?id=say", "logs?stage=say"):
            assert re.findall(r"line &lt;(\d+)", (await client.get(f"/console/runs/{run}/{path}")).text) == ["1"]

    async def test_times_of_day_stand_below_their_day(
        self, signed_in: SignIn, api: httpx.AsyncClient, superuser: psycopg.AsyncConnection, tenant: UUID
    ) -> None:
        run = await self.start_with(api, superuser, tenant)
        midnight = datetime(2026, 12, 1, tzinfo=UTC)
        await superuser.execute(
            "insert into tenantry.workflow_logs (tenant_id, run_id, stage_id, attempt, level, message, created_at)"
            " select %s, %s, 'say', 1, 'info', 'line', %s + n * interval '1 hour' from generate_series(-1, 1) as n",
            (tenant, run, midnight),
        )
        await superuser.execute(
            "update tenantry.outbox_events set occurred_at = %s + (sequence - 3) * interval '1 hour' where run_id = %s",
            (midnight, run),
        )
        client = await signed_in()
        days = ["Mon 2026-11-30", "Tue 2026-12-01"]
        for path, told in (("/logs", days), ("/events", days), ("", days + days[::-1]), ("/stage?id=say", days)):
            text = (await client.get(f"/console/runs/{run}{path}")).text
            assert re.findall(r'class="day"><th[^>]*>([^<]+)', text) == told, path

    async def test_a_stage_shows_its_own_steps_and_says_where_there_are_more(
        self, signed_in: SignIn, api: httpx.AsyncClient, superuser: psycopg.AsyncConnection, tenant: UUID
    ) -> None:
        run = await self.start_with(api, superuser, tenant)
        await superuser.execute(
            "insert into tenantry.workflow_stages (tenant_id, run_id, stage_id, group_number, number, status, attempt,"
            " max_attempts, started_at, completed_at) values (%s, %s, 'other', 1, 2, 'COMPLETED', 1, 1, now(), now())",
            (tenant, run),
        )
        await superuser.execute(
            "insert into tenantry.workflow_steps"
            " (tenant_id, run_id, stage_id, step_id, seq, kind, status, result, created_at, completed_at)"
            " select %s, %s, case when n <= 150 then 'other' else 'say' end, 'step-' || n, n, 'run', 'completed',"
            " to_json(repeat('x', 5000)), now() + n * interval '10 minutes', now() + n * interval '10 minutes 1 second'"
            " from generate_series(1, 270) as n",
            (tenant, run),
        )
        client = await signed_in()

        async def read(path: str) -> tuple[str, list[str]]:
            text = (await client.get(f"/console/runs/{run}{path}")).text
            return text, re.findall(r'"name">step-(\d+)', text)

        text, shown = await read("/stage?id=say")
        assert shown == [str(number) for number in range(151, 251)]
        assert "the first 100" in text
        assert f'href="/console/runs/{run}/steps?stage=say"' in text
        text, shown = await read("/steps?stage=say")
        (following,) = re.findall(r'rel="next" href="[^"]*(/steps[^"]*)"', text)
        assert shown + (await read(following.replace("&amp;", "&")))[1] == [str(number) for number in range(151, 271)]
        (whole, *_) = re.findall(r'href="([^"]*of=result[^"]*step=step-151)"', text)
        assert (await client.get(whole.replace("&amp;", "&"))).json() == "x" * 5000
        for wanted in ("of=result&stage=say&step=nobody", "of=output&stage=say&step=step-151", "of=result&stage=say"):
            assert (await client.get(f"/console/runs/{run}/payload?{wanted}")).status_code == 404
        text, _ = await read("")
        assert "Only the first 100 steps are drawn" in text
        # A hundred pauses are drawn once, and not for each line.
        assert "The timeline is cut in" in text
        assert 0 < text.count('class="break"') <= 101

    async def test_what_a_page_of_a_run_or_a_stage_leaves_out_is_said_and_can_be_had(
        self, signed_in: SignIn, api: httpx.AsyncClient, superuser: psycopg.AsyncConnection, tenant: UUID
    ) -> None:
        run = await self.start_with(api, superuser, tenant)
        client = await signed_in()
        # Another stage has had thousands of events, and this one has waited as often, between its attempts.
        await superuser.execute(
            "insert into tenantry.outbox_events (tenant_id, run_id, sequence, type, stage_id, payload, occurred_at)"
            " select %(tenant)s, %(run)s, 6 + n, case n %% 30 when 1 then 'stage:started' when 2 then 'stage:retrying'"
            " else 'stage:suspended' end, case when n <= 2200 then 'other' else 'say' end,"
            " json_build_object('attempt', 3 + n / 30), now() - (6000 - n) * interval '1 second' from generate_series(1, 6000) as n",
            {"tenant": tenant, "run": run},
        )
        await superuser.execute(
            "update tenantry.workflow_runs set started_at = now() - interval '2 hours' where run_id = %s", (run,)
        )
        stage = (await client.get(f"/console/runs/{run}/stage?id=say")).text
        numbers = re.findall(r'data-label="Attempt">(\d+)', stage)
        assert numbers == [str(number) for number in range(103, 203)]
        assert "the last 100" in stage
        (rest,) = re.findall(r'href="([^"]+)">All its events', stage)
        events = (await client.get(rest.replace("&amp;", "&"))).text
        assert set(re.findall(r"<td[^>]*><a [^>]*/stage\?id=(\w+)", events)) == {"say"}
        (following,) = re.findall(r'rel="next" href="([^"]+)"', events)
        assert {"kind=stages", "stage=say"} <= set(following.replace("&amp;", "&").partition("?")[2].split("&"))
        assert (await client.get(following.replace("&amp;", "&"))).status_code == 200
        whole = (await client.get(f"/console/runs/{run}")).text
        assert "Only what the first 2,000 events of its stages tell is drawn." in whole
        assert "no more is told of it" in whole


class TestHostilePayloads:
    async def test_no_text_of_a_tenant_becomes_markup(self, signed_in: SignIn, api: httpx.AsyncClient) -> None:
        hostile = {HOSTILE: [HOSTILE, {"</pre></textarea><!--": HOSTILE}]}
        run = await start(api, input=hostile, tags=[HOSTILE[:64]], run_at="2999-01-01T00:00:00Z")
        client = await signed_in(name=HOSTILE)
        await send(client, "/console/keys", name=f"key {HOSTILE}", scopes=["runs:read"])
        await send(client, f"/console/runs/{run}/cancel", reason=HOSTILE)
        pages = [
            "/console", "/console/runs", f"/console/runs/{run}", f"/console/runs/{run}/events", "/console/keys",
            f"/console/workflows/anything/start?like={run}", "/console/usage", "/console/sign-in?next=/console/%22%3E%3Cscript%3E",
        ]  # fmt: skip
        for path in pages:
            text = (await client.get(path)).text
            assert "<script>" not in text, path
            assert "<img" not in text, path
            assert 'onerror="' not in text, path
        shown = (await client.get(f"/console/runs/{run}")).text
        assert "&lt;script&gt;window.pwned=1" in shown
        sent = await send(client, f"/console/runs/{run}/signal", stage_id=HOSTILE, step_id=HOSTILE, payload=HOSTILE)
        assert "<script>" not in sent.text

    async def test_payloads_are_shown_as_they_are_stored(self, signed_in: SignIn, api: httpx.AsyncClient) -> None:
        run = await start(api, input={"big": 12345678901234567890, "text": "x" * 60_000})
        page = (await (await signed_in()).get(f"/console/runs/{run}")).text
        assert "12345678901234567890" in page
        assert "the whole is in the download" in page
        assert len(page) < 100_000
        whole = await (await signed_in()).get(f"/console/runs/{run}/payload?of=input")
        assert json.loads(whole.text)["text"] == "x" * 60_000


async def test_pages_of_a_run_say_which_payloads_are_lost(
    signed_in: SignIn, api: httpx.AsyncClient, superuser: psycopg.AsyncConnection, tenant: UUID
) -> None:
    run = await start(api)
    await superuser.execute(
        "insert into tenantry.workflow_stages (tenant_id, run_id, stage_id, group_number, number, status, attempt,"
        " max_attempts, output_digest) values (%s, %s, 'say', 1, 1, 'COMPLETED', 1, 1, 'one'::bytea)",
        (tenant, run),
    )
    await superuser.execute(
        "update tenantry.workflow_runs set input = null, input_digest = 'two', output_digest = 'three', ready = false,"
        " status = 'COMPLETED' where run_id = %s",
        (run,),
    )
    client = await signed_in()
    lost = "The store of payloads has lost it."
    for page in ("", "/stage?id=say"):
        shown = await client.get(f"/console/runs/{run}{page}")
        assert (shown.status_code, shown.text.count(lost)) == (200, 2)
    assert (await client.get(f"/console/runs/{run}/payload?of=input")).status_code == 404
    assert (await client.get(f"/console/workflows/anything/start?like={run}")).status_code == 200
