"""The workflow `invoice-import`: parse and check each line, add up and look for duplicates side by side, report."""

import asyncio
import os
import time
from typing import Final

from kernel import Registry, StageContext, Terminal, stage, workflow
from service.demo import findings, parsing
from service.demo.models import Duplicates, Findings, ImportReport, InvoiceFile, Parsed, Totals

STAGE_SECONDS: Final = "TENANTRY_DEMO_STAGE_SECONDS"
_BEAT = 0.2


@stage("parse", name="Parse and check each line")
async def parse(ctx: StageContext, file: InvoiceFile) -> Parsed:
    """Read the file in a thread; one that is no invoice export fails for good."""
    await _take_time(ctx)
    try:
        parsed = await asyncio.to_thread(parsing.parse_invoices, file.csv, file.filename)
    except parsing.NotAnInvoiceFileError as error:
        raise Terminal(str(error)) from error
    ctx.log("info", "file parsed", lines=parsed.lines, accepted=len(parsed.invoices), rejected=len(parsed.rejects))
    return parsed


@stage("totals", name="Totals by currency and customer")
async def totals(ctx: StageContext, parsed: Parsed) -> Totals:
    """Add up the accepted lines."""
    await _take_time(ctx)
    return await asyncio.to_thread(findings.total_up, parsed.invoices)


@stage("duplicates", name="Duplicate detection")
async def duplicates(ctx: StageContext, parsed: Parsed) -> Duplicates:
    """Find the lines that look like one invoice."""
    await _take_time(ctx)
    return await asyncio.to_thread(findings.find_duplicates, parsed.invoices)


@stage("report", name="Report", requires=(parse,))
async def report(ctx: StageContext, found: Findings) -> ImportReport:
    """Write the report that is the run's output."""
    await _take_time(ctx)
    return findings.write_report(ctx.require(parse), found)


async def _take_time(ctx: StageContext) -> None:
    """With TENANTRY_DEMO_STAGE_SECONDS set, make the stage last that long, so that people can watch and pull plugs."""
    seconds = float(os.environ.get(STAGE_SECONDS) or 0)
    begun = time.monotonic()
    while (passed := time.monotonic() - begun) < seconds:
        ctx.abort_signal.raise_if_aborted()
        ctx.progress(passed / seconds, f"{passed:.0f} of {seconds:.0f} s")
        await asyncio.sleep(min(_BEAT, seconds - passed))


invoice_import = (
    workflow("invoice-import", input=InvoiceFile).pipe(parse).parallel(totals, duplicates).pipe(report).build()
)
registry = Registry([invoice_import])
