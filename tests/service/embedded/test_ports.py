"""Ports of the embedded servers: kept while nobody takes them, replaced and said so when somebody did."""

import json
import socket
from pathlib import Path

import pytest

from service.embedded import EmbeddedError
from service.embedded.ports import Ports


def test_a_port_is_the_same_at_each_start_and_each_server_has_its_own(tmp_path: Path) -> None:
    first = Ports(tmp_path / "ports.json")
    taken = [first.take("Postgres"), first.take("PgBouncer")]
    assert taken[0] != taken[1]
    again = Ports(tmp_path / "ports.json")
    assert [again.take("Postgres"), again.take("PgBouncer")] == taken
    assert first.moved == again.moved == []


def test_a_port_that_is_taken_is_replaced_for_good_and_said(tmp_path: Path) -> None:
    ports = Ports(tmp_path / "ports.json")
    kept, lost = ports.take("Postgres"), ports.take("PgBouncer")
    with socket.create_server(("127.0.0.1", lost)):
        moved = Ports(tmp_path / "ports.json")
        now = moved.take("PgBouncer")
        assert moved.take("Postgres") == kept
    assert now not in {kept, lost}
    assert len(moved.moved) == 1
    assert all(word in moved.moved[0] for word in ("PgBouncer", str(lost), str(now), "taken"))
    assert Ports(tmp_path / "ports.json").take("PgBouncer") == now, "it does not move back"


def test_a_port_whose_last_connections_are_being_forgotten_is_free(tmp_path: Path) -> None:
    port = Ports(tmp_path / "ports.json").take("Postgres")
    with (
        socket.create_server(("127.0.0.1", port)) as server,
        socket.create_connection(("127.0.0.1", port)) as client,
    ):
        accepted, _ = server.accept()
        # The side that closes first is the one that remembers.
        accepted.close()
        client.recv(1)
    assert Ports(tmp_path / "ports.json").take("Postgres") == port


def test_a_port_that_the_user_writes_down_is_taken(tmp_path: Path) -> None:
    wanted = Ports(tmp_path / "other.json").take("Postgres")
    (tmp_path / "ports.json").write_text(json.dumps({"Postgres": wanted}))
    assert Ports(tmp_path / "ports.json").take("Postgres") == wanted


@pytest.mark.parametrize("text", ["", "{", "[]", '{"Postgres": "5432"}', '{"Postgres": 0}', '{"Postgres": true}'])
def test_a_file_without_ports_is_refused_by_its_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "ports.json"
    path.write_text(text)
    with pytest.raises(EmbeddedError, match=str(path)):
        Ports(path).take("Postgres")
