"""One Helm for all tests of the chart, and every case rendered once."""

from collections.abc import Iterator

import pytest

from tests.support.chart import CASES, Helm, Rendered, open_helm, values_of


@pytest.fixture(scope="session")
def helm() -> Iterator[Helm]:
    """Helm, started once."""
    with open_helm() as opened:
        yield opened


@pytest.fixture(scope="session")
def rendered(helm: Helm) -> dict[str, Rendered]:
    """Every case of `helm/ci`, rendered."""
    return {case: helm.render(values_of(case)) for case in CASES}


@pytest.fixture(params=list(CASES))
def case(request: pytest.FixtureRequest, rendered: dict[str, Rendered]) -> Rendered:
    """Each case in turn."""
    return rendered[request.param]
