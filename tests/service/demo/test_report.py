"""The report shows what a payment's steps have been through."""

import io
from decimal import Decimal
from typing import Any

from rich.console import Console

from service.demo.models import Due, ImportReport, Payment
from service.demo.report import render_report


def drawn(payment: Payment, steps: list[dict[str, Any]]) -> str:
    report = ImportReport(
        filename="a.csv",
        lines=1,
        accepted=0,
        rejected=0,
        decimal_commas=0,
        reasons={},
        currencies=[],
        top_customers=[],
        duplicates=[],
        rejects=[],
        payment=payment,
    )
    screen = Console(file=io.StringIO(), width=160)
    run = {"status": "COMPLETED", "output": report.model_dump(mode="json")}
    screen.print(render_report("Acme", run, steps))
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue()


def step(step_id: str, kind: str, attempt: int = 0, result: object = None) -> dict[str, Any]:
    return {
        "step_id": step_id,
        "kind": kind,
        "status": "completed",
        "attempt": attempt,
        "result": result,
        "external_key": "tny-1",
    }


def test_it_tells_of_retry_approval_sleep_and_payment() -> None:
    payment = Payment(
        due=Due(euros=Decimal("2000.50"), limit=Decimal(1000), unpriced=["XOF"]), approved_by="Ada", reference="tny-1"
    )
    steps = [
        step("exchange-rates", "run", 2),
        step("approval", "signal", result={"by": "Ada"}),
        step("cooling-off", "sleep"),
        step("pay", "run", 1),
    ]
    text = drawn(payment, steps)
    for words in (
        "2,000.50 EUR were paid, and without a rate: XOF",
        "1,000 EUR an approval was needed, and Ada gave it",
        "attempt 2 succeeded",
        "approved by Ada",
        "slept",
        "paid once, under the key tny-1",
    ):
        assert words in text


def test_it_says_that_nobody_had_to_approve() -> None:
    payment = Payment(due=Due(euros=Decimal(1), limit=Decimal(1000)), approved_by=None, reference="tny-1")
    assert "1.00 EUR were paid, within the limit of 1,000 EUR: nobody had to approve it." in drawn(payment, [])


def test_a_failed_run_shows_its_error() -> None:
    screen = Console(file=io.StringIO(), width=100)
    run = {"status": "FAILED", "output": None, "error": {"message": "Ada does not approve"}}
    screen.print(render_report("Acme", run, []))
    assert isinstance(screen.file, io.StringIO)
    assert "Ada does not approve" in screen.file.getvalue()
