"""How the processes collect garbage: what was loaded at the start is left alone, and cycles are looked for rarely."""

import gc

# Container objects allocated beyond those freed, between two looks at the young ones. Python's default of 700 costs a
# busy worker a fifth of its CPU; reference counts free nearly everything there is.
YOUNG = 20_000
MIDDLE = 20
OLD = 50


def collect_rarely() -> None:
    """Take everything that is loaded by now out of the collector's sight, and let it look less often.

    For a process of ours, once it has loaded its modules and registry; never for a library inside a host's process.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, OLD)
