"""Where the servers of one embedded database live."""

from dataclasses import dataclass
from pathlib import Path

from service.embedded.account import Account
from service.embedded.ports import Ports


@dataclass(frozen=True, slots=True)
class Place:
    """The directory of the servers' files, the account that they run as and may write there, and their ports."""

    directory: Path
    account: Account
    ports: Ports
