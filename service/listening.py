"""The socket that a server of ours listens on."""

import socket
from typing import Final

BACKLOG: Final = 2048


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens there.

    Raises:
        OSError: nobody can; the text names the setting.
    """
    # uvicorn would end the process when the address is taken; the error is ours to tell.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OSError(f"port: cannot listen on {host}:{port}: {reason}") from error
