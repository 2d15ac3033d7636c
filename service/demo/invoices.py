"""The workflow `invoice-import`: parse each line, add up and look for duplicates side by side, pay, report."""

import asyncio
import os
import time
from typing import Any, Final

from kernel import Registry, StageContext, Step, Terminal, stage, workflow
from service.demo import findings, parsing, payments
from service.demo.models import (
    Approval,
    Duplicates,
    Findings,
    ImportReport,
    InvoiceFile,
    Parsed,
    Payment,
    PaymentConfig,
    Rates,
    Receipt,
    Totals,
)

STAGE_SECONDS: Final = "TENANTRY_DEMO_STAGE_SECONDS"
RATES: Final = "exchange-rates"
APPROVAL: Final = "approval"
COOLING_OFF: Final = "cooling-off"
# How long a step of a killed worker is taken to be under way; heartbeats keep one that lives.
_STEP_LEASE: Final = "6s"
_STEP_HEARTBEAT: Final = "2s"
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


@stage("payment", name="Approval and payment")
async def payment(ctx: StageContext[PaymentConfig], found: Findings) -> Payment:
    """Pay; what is above the limit waits for a signal, and then for a moment in which it can still be stopped.

    While it waits nothing of it is in memory. It resumes from the top, on any worker, with the steps that are done
    answered from the ledger.
    """

    async def fetch_rates(step: Step) -> Rates:
        if step.attempt == 1:
            await _take_time(ctx)
        return await payments.fetch_rates(step)

    rates: Rates = await ctx.step.run(
        RATES,
        fetch_rates,
        retries=3,
        retry_delay="1s",
        lease=_STEP_LEASE,
        heartbeat=_STEP_HEARTBEAT,
        model=Rates,
    )
    due = payments.sum_up(findings.sum_payable(found), rates, ctx.config.approval_limit)
    approved_by = None
    if due.needs_approval:
        approval: Approval = await ctx.step.wait_for_signal(APPROVAL, timeout="1d", model=Approval)
        if not approval.approved:
            message = f"{approval.by} does not approve of paying {due.euros} EUR"
            raise Terminal(message)
        approved_by = approval.by
        await ctx.step.sleep(COOLING_OFF, "1s")
    receipt: Receipt = await ctx.step.run("pay", payments.pay, lease=_STEP_LEASE, model=Receipt)
    return Payment(due=due, approved_by=approved_by, reference=receipt.reference)


@stage("report", name="Report", requires=(parse, totals, duplicates))
async def report(ctx: StageContext, paid: Payment) -> ImportReport:
    """Write the report that is the run's output."""
    await _take_time(ctx)
    found = Findings(totals=ctx.require(totals), duplicates=ctx.require(duplicates))
    return findings.write_report(ctx.require(parse), found, paid)


async def _take_time(ctx: StageContext[Any]) -> None:
    """With TENANTRY_DEMO_STAGE_SECONDS set, make the stage last that long, so that people can watch and pull plugs."""
    seconds = float(os.environ.get(STAGE_SECONDS) or 0)
    begun = time.monotonic()
    while (passed := time.monotonic() - begun) < seconds:
        ctx.abort_signal.raise_if_aborted()
        ctx.progress(passed / seconds, f"{passed:.0f} of {seconds:.0f} s")
        await asyncio.sleep(min(_BEAT, seconds - passed))


invoice_import = (
    workflow("invoice-import", input=InvoiceFile)
    .pipe(parse)
    .parallel(totals, duplicates)
    .pipe(payment)
    .pipe(report)
    .build()
)
registry = Registry([invoice_import])
