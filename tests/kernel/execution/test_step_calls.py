"""How a step's function is called is looked at once for functions alike: those that differ are told apart all the same."""

import functools
import inspect
from collections.abc import Callable
from itertools import permutations
from typing import Any

import pytest

from kernel import InvalidDurationError
from kernel.execution import step_calls
from kernel.execution.step_calls import is_coroutine_function, takes_argument
from kernel.execution.step_options import run_options


def one_code(default: bool) -> Callable[..., Any]:
    """Return functions of one code, whose parameter has a default or none."""

    def function(item: object) -> object:
        return item

    if default:
        function.__defaults__ = (1,)
    return function


async def taking(item: object) -> object:
    return item


def keeping(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function as it is done everywhere: the wrapper's code is the same, its signature is the other's."""

    @functools.wraps(function)
    def wrapper(*args: object, **named: object) -> object:
        return function(*args, **named)

    return wrapper


def signed(*names: str) -> Callable[..., Any]:
    """Return functions of one code with signatures of their own."""

    def function(*args: object) -> object:
        return args

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    function.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in names])  # type: ignore[attr-defined]
    return function


class Methods:
    def takes(self, item: object) -> object:
        return item

    def takes_nothing(self) -> None: ...

    async def waits(self, item: object) -> object:
        return item

    @classmethod
    def of_the_class(cls, item: object) -> object:
        return item

    @staticmethod
    def of_nobody() -> None: ...


class Callable1:
    async def __call__(self, item: object) -> object:
        return item


class Callable0:
    def __call__(self) -> None: ...


ALIKE: dict[str, list[Callable[..., Any]]] = {
    "defaults": [one_code(False), one_code(True)],
    "partials": [
        functools.partial(taking),
        functools.partial(taking, 1),
        functools.partial(taking, item=1),
        functools.partial(functools.partial(taking), 1),
        functools.partial(taking, 1, 2),
        functools.partial(taking, other=1),
    ],
    "wrappers": [keeping(lambda: 1), keeping(lambda item: item), keeping(taking)],
    "signatures": [signed(), signed("item")],
    "methods": [
        Methods().takes,
        Methods().takes_nothing,
        Methods().waits,
        Methods.of_the_class,
        Methods.of_nobody,
        Methods.takes,
        Methods.takes_nothing,
        functools.partial(Methods().takes, 1),
        functools.partial(Methods.takes, Methods()),
    ],
    "objects": [Callable0(), Callable1(), functools.partial(Callable1(), 1), Callable1, int, print],
    "lambdas": [lambda: 1, lambda item: item, lambda item=1: item, lambda step=None: step, lambda *items: items],
}


@pytest.mark.parametrize("kind", ALIKE)
def test_functions_alike_are_not_taken_for_each_other(kind: str) -> None:
    for functions in permutations(ALIKE[kind], 2):
        step_calls._MANNERS.clear()
        for function in (*functions, *functions):
            manner = step_calls._manner(function)
            told = manner.takes_argument, manner.is_coroutine
            assert told == (takes_argument(function), is_coroutine_function(function)), function


def test_the_functions_that_a_line_makes_are_looked_at_once_and_not_kept_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step_calls._MANNERS.clear()
    for number in range(20):
        step_calls._manner(lambda number=number: number)
        step_calls._manner(functools.partial(one_code(False), number))
    assert len(step_calls._MANNERS) == 2
    monkeypatch.setattr(step_calls, "MAX_MANNERS", 10)
    for number in range(50):
        step_calls._manner(eval(f"lambda: {number}"))
    assert len(step_calls._MANNERS) <= 10


def test_options_that_are_equal_and_of_another_type_are_read_for_themselves() -> None:
    given: dict[str, Any] = {"retry_delay": 0, "retry_backoff": None, "heartbeat": None, "on_reclaim": "rerun"}
    for _ in range(2):
        assert run_options(lease=1, retries=1, **given).retries == 1
        with pytest.raises(ValueError, match="retries: True"):
            run_options(lease=1, retries=True, **given)
        with pytest.raises(InvalidDurationError, match="lease: True"):
            run_options(lease=True, retries=1, **given)
        with pytest.raises(InvalidDurationError, match="lease: "):
            run_options(lease=[], retries=1, **given)  # type: ignore[arg-type]
