"""How the bench talks to a peer's script: an action, a database and settings on the command line, JSON lines back.

`ready` is said when everything is imported and connected; work begins with a line on stdin and ends with its end.
"""

import json
import random
import sys
import time
from collections.abc import Callable
from typing import Any

Action = Callable[..., Any]


def serve(actions: dict[str, Action]) -> None:
    """Do what the command line says and print what it returned."""
    action, url, settings = sys.argv[1:4]
    tell(actions[action](url, **json.loads(settings)))


def tell(answer: Any) -> None:
    """Print one JSON line."""
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def await_go() -> None:
    """Say that everything is there, and wait for the word."""
    tell("ready")
    sys.stdin.readline()


def await_end() -> None:
    """Wait until the bench has measured."""
    sys.stdin.read()


def gaps(count: int) -> list[float]:
    """Return the pauses between runs on an idle system in seconds: random, and the same for everyone."""
    chance = random.Random(7)
    return [chance.uniform(0.05, 0.35) for _ in range(count)]


def await_done(is_done: Callable[[], bool], began: float, give_up_s: float = 20) -> float:
    """Look every 2 ms whether the run is over and return how long it took since `began` (time.time()), in seconds."""
    while not is_done():
        if time.time() - began > give_up_s:
            raise TimeoutError
        time.sleep(0.002)
    return time.time() - began


def share(numbers: range, clients: int) -> list[range]:
    """Deal numbers out to clients."""
    return [numbers[index::clients] for index in range(clients)]
