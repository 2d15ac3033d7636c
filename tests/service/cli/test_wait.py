"""`tenantry wait`: until servers answer, and what it says when they do not."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tests.support.command_line import CommandLine
from tests.support.system import free_port


class Late(BaseHTTPRequestHandler):
    """503 twice, then 200; /never is always 503."""

    asked = 0

    def do_GET(self) -> None:
        type(self).asked += 1
        self.send_response(503 if self.path == "/never" or self.asked <= 2 else 200)
        self.end_headers()
        self.wfile.write(b"not yet")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    Late.asked = 0
    with HTTPServer(("127.0.0.1", 0), Late) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_it_asks_until_all_have_answered(tenantry: CommandLine, url: str) -> None:
    answer = tenantry("wait", f"{url}/readyz", f"{url}/healthz", "--timeout", "20s", "--json")
    assert (answer.status, answer.json) == (0, {"answered": [f"{url}/readyz", f"{url}/healthz"]})
    assert Late.asked == 4


def test_it_says_what_was_answered_last(tenantry: CommandLine, url: str) -> None:
    answer = tenantry("wait", f"{url}/never", "--timeout", "1500ms")
    assert answer.status == 1
    assert f"not within 1.5 s: {url}/never answered 503: not yet" in answer.err


def test_a_server_that_is_away_and_a_url_that_is_none(tenantry: CommandLine) -> None:
    away = tenantry("wait", f"http://127.0.0.1:{free_port()}/", "--timeout", "1s")
    assert (away.status, "not within 1 s" in away.err) == (1, True)
    assert tenantry("wait", "nonsense").status == 1
    assert tenantry("wait", "http://127.0.0.1:1/", "--timeout", "soon").status == 2
