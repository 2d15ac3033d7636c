"""The kernel is a function of the caller's transaction and a command: it begins nothing, opens nothing, waits for no clock."""

from pathlib import Path

import pytest

from tests.architecture.source import Module, methods_called, modules, sql_files

# What would make the kernel own a transaction, a connection or a task. (`begin` of something is a word of the domain.)
FORBIDDEN_CALLS = {
    "begin", "begin_nested", "commit", "rollback", "savepoint", "connect", "create_pool", "create_engine",
    "create_async_engine", "create_task", "ensure_future", "call_later", "call_at", "run_until_complete", "sleep", "Timer",
}  # fmt: skip
ALLOWED: dict[str, set[str]] = {
    # A stage that times out must be ended from outside of it: its body is a task of its own.
    "kernel/execution/stage_runner.py": {"create_task"},
    # Between claim and settle a body runs outside of the database: its steps outlive a sibling's suspension, their leases
    # are extended and their outcomes linger. `conclude` ends all of it before the settle.
    "kernel/execution/flights.py": {"create_task", "sleep"},
    "kernel/execution/step_effects.py": {"create_task", "sleep"},
    "kernel/execution/step_execution.py": {"create_task"},
    "kernel/execution/step_queue.py": {"create_task", "call_later"},
    # A host, for tests: it executes parallel stages side by side and kills them together.
    "kernel/testing/worker.py": {"create_task"},
}
FORBIDDEN_IMPORTS = {"socket", "sqlite3", "subprocess", "sched", "psycopg", "asyncpg", "sqlalchemy"}
FORBIDDEN_SQL = ("advisory", "savepoint", "listen ", "notify ", "security definer", "create temp", "set session")


@pytest.mark.parametrize("module", modules("kernel"), ids=lambda module: module.path)
def test_the_kernel_owns_no_transaction_connection_or_timer(module: Module) -> None:
    allowed = ALLOWED.get(module.path, set())
    calls = [
        f"{module.path}:{line} {name}"
        for line, name, arguments in methods_called(module.tree)
        if name in FORBIDDEN_CALLS - allowed and not (name == "begin" and arguments)
    ]
    assert calls == []


@pytest.mark.parametrize("module", modules("kernel"), ids=lambda module: module.path)
def test_the_kernel_imports_no_driver_and_no_socket(module: Module) -> None:
    imported = {
        line.split()[1].split(".")[0] for line in module.text.splitlines() if line.startswith(("import ", "from "))
    }
    assert imported & FORBIDDEN_IMPORTS == set()


@pytest.mark.parametrize("path", sql_files(), ids=lambda path: path.name)
def test_statements_need_no_session(path: Path) -> None:
    code = "\n".join(line.split("--")[0] for line in path.read_text().lower().splitlines())
    assert [word for word in FORBIDDEN_SQL if word in code] == []


@pytest.mark.parametrize("module", modules("kernel", "tenancy"), ids=lambda module: module.path)
def test_what_traces_is_the_hosts_affair_and_baggage_is_nobodys(module: Module) -> None:
    imported = [line for line in module.text.splitlines() if line.startswith(("import ", "from ", "    from "))]
    of_tracing = [line.split("opentelemetry", 1)[1] for line in imported if "opentelemetry" in line]
    assert not [line for line in of_tracing if any(word in line for word in ("sdk", "exporter", "baggage", "propagat"))]
