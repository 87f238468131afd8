"""A model hub in a folder, of the standard library only: see `LocalHub`."""

from .accounts import Account
from .faults import Fault, FaultTable
from .request_log import LoggedRequest, RequestLog
from .server import LocalHub

__all__ = ["Account", "Fault", "FaultTable", "LocalHub", "LoggedRequest", "RequestLog"]
