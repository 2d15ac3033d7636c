"""How the command line reads durations: as the kernel does, without loading it."""

import pytest

from kernel.execution.durations import parse_duration
from service.cli.words import seconds_of


@pytest.mark.parametrize("text", ["0s", "250ms", "30s", "5m", "24h", "7d", "007s", "36500d"])
def test_a_length_of_time_is_what_the_kernel_takes_it_for(text: str) -> None:
    assert seconds_of(text) == parse_duration(text)


@pytest.mark.parametrize(
    "text", ["", "5", "soon", "-5s", "1.5s", "42m30s", "5 s", "5S", "1e3s", "\u0665s", "9" * 13 + "s"]
)
def test_what_the_kernel_does_not_take_for_one_is_refused(text: str) -> None:
    for read in (seconds_of, parse_duration):
        with pytest.raises(ValueError, match="is no duration"):
            read(text)
