"""An import never runs back up: service, then kernel and migrations, then tenancy."""

import subprocess
import sys
from pathlib import Path

from tests.architecture.source import CHECKOUT, modules


def test_the_contracts_of_pyproject_hold() -> None:
    command = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([str(command), "--no-cache"], cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


def test_the_product_does_not_import_its_tests() -> None:
    assert [module.path for module in modules() if "import tests" in module.text or "from tests" in module.text] == []
