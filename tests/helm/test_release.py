"""A whole release as processes: pods wait for the migration, the test of the release passes, a stop is graceful."""

import asyncio

from tests.support import waiting
from tests.support.chart import Helm
from tests.support.command_line import CommandLine
from tests.support.environment import DatabaseUrls
from tests.support.processes import answers
from tests.support.release import Release

VALUES = {
    "workflows": "tests.support.stress:REGISTRY",
    "migrations": {"mode": "job"},
    "operator": {"enabled": True, "tokenSecret": {"name": "operator"}},
    "database": {"logins": {"admin": {"existingSecret": "admin"}}},
    "helmTest": {"run": {"workflow": "trio", "input": {"seconds": 0.1}, "apiKeySecret": "key"}},
}


async def test_pods_wait_for_the_migration_and_then_a_run_goes_through(
    helm: Helm, empty_database_urls: DatabaseUrls
) -> None:
    with Release(helm, empty_database_urls, VALUES) as release:
        (api,) = release.pod("Deployment", "-api")["containers"]
        (worker,) = release.pod("Deployment", "-worker-default")["containers"]
        (job,) = release.pod("Job", "")["containers"]
        of_worker = f"http://127.0.0.1:{release.ports['8001']}"
        with release.start(api) as api_process, release.start(worker) as worker_process:
            for url in (release.url, of_worker):
                await waiting.until(lambda: asyncio.to_thread(answers, f"{url}/healthz"), f"{url} lives", 60)  # noqa: B023
                assert not await asyncio.to_thread(answers, f"{url}/readyz")
            # On a server without our roles as on one without our schema.
            await waiting.until(lambda: "tenantry db migrate" in worker_process.output, "it says what is missing", 30)
            with release.start(job) as migration:
                assert await asyncio.to_thread(migration.wait, 60) == 0, migration.output
            for url in (release.url, of_worker):
                await waiting.until(lambda: asyncio.to_thread(answers, f"{url}/readyz"), f"{url} is ready", 60)  # noqa: B023
            release.secrets["key"] = await asyncio.to_thread(_first_key, release)
            test = release.pod("Pod", "-test")
            for container in (*test["initContainers"], *test["containers"]):
                with release.start(container) as process:
                    assert await asyncio.to_thread(process.wait, 60) == 0, process.output
                    told = process.output
            assert "COMPLETED" in told
            assert await asyncio.to_thread(worker_process.stop) == 0
            assert await asyncio.to_thread(api_process.stop) == 0
            assert "Traceback" not in api_process.output + worker_process.output


def _first_key(release: Release) -> str:
    """Make a tenant and its key as the notes of the release say, with the operator's login through PgBouncer."""
    environment = release.environment(release.pod("Deployment", "-api")["containers"][0])
    names = ("OPERATOR_DATABASE_URL", "OPERATOR_DATABASE_PASSWORD_FILE")
    operator = CommandLine({name: environment[f"TENANTRY_{name}"] for name in names})
    assert operator("tenant", "create", "acme").status == 0
    return str(operator("key", "create", "--tenant", "acme", "--json").json["key"])
