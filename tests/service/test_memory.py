import gc
import subprocess
import sys

from service.memory import YOUNG

PROGRAM = """
import gc
from service.memory import collect_rarely
collect_rarely()
class Knot: pass
knot = Knot(); knot.itself = knot
ended = []
import weakref
weakref.finalize(knot, ended.append, 1)
del knot
ballast = [[] for _ in range(30_000)]
print(gc.get_threshold()[0], gc.get_freeze_count() > 1000, ended)
"""


def test_garbage_is_looked_for_rarely_but_still_found() -> None:
    told = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stdout
    assert told.split() == [str(YOUNG), "True", "[1]"]


def test_a_process_that_only_imports_us_keeps_its_own_collector() -> None:
    program = "import gc, kernel, tenancy; print(gc.get_threshold()[0], gc.get_freeze_count())"
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert told.split()[0] == str(gc.get_threshold()[0])
