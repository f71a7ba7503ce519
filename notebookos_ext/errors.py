"""The error tree of the whole package; every message is one sentence that says what is wrong and
what to do.

    NotebookOSError
    ├── InvalidRequest            the caller asked for something impossible       400
    │   ├── InvalidSettings       a setting has a wrong name or value             400
    │   └── Infeasible            no host could ever satisfy it                   409
    ├── NotFound                  no such kernel, replica, host                   404
    ├── Unavailable               cannot be done now, may work later              503
    │   ├── NoMajority            the kernel's Raft group has no majority         503
    │   ├── OutcomeUnknown        a proposal may or may not have been committed   503
    │   ├── AgentUnreachable      a host agent does not answer                    503
    │   └── LaunchFailed          a replica or an agent could not be started      503
    ├── Refused                   a closed attempt, old epoch, foreign token      409
    ├── StorageError              a file or store cannot be read or written       507
    │   ├── StorageFull                                                           507
    │   └── CorruptRecord         stored bytes fail their checksum or MAC         500
    │       └── LogLost           a host has no usable log of a kernel any more   500
    ├── ProtocolError             a peer broke the wire protocol                  502
    └── Defect                    the program broke one of its own rules          500

`handlers/base.py` maps classes to HTTP statuses from the table above, in one place.
"""

from __future__ import annotations

import msgspec

UNREADABLE = (msgspec.DecodeError, RecursionError)
"""What decoders raise for bytes that are not what they should be, or are nested too deeply."""


class NotebookOSError(Exception):
    """Root of the tree. `hint` says what the user can do; empty when the message says it."""

    status = 500

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class InvalidRequest(NotebookOSError):
    """The caller asked for something that makes no sense; nothing was changed."""

    status = 400


class InvalidSettings(InvalidRequest):
    """A setting has an unknown name or a value out of range."""


class Infeasible(InvalidRequest):
    """No host of this cluster could ever satisfy the request."""

    status = 409


class NotFound(NotebookOSError):
    """There is no kernel, replica, host or chunk of that name."""

    status = 404


class Unavailable(NotebookOSError):
    """Cannot be done now; the same request may succeed later."""

    status = 503


class NoMajority(Unavailable):
    """The kernel's Raft group cannot commit because most of its members are away."""


class OutcomeUnknown(Unavailable):
    """The proposal may or may not be committed; retry it with the same proposal id."""


class AgentUnreachable(Unavailable):
    """A host agent does not answer on its control socket."""


class LaunchFailed(Unavailable):
    """A replica or host agent process could not be started."""


class Refused(NotebookOSError):
    """The request belongs to a closed attempt, an old epoch or an expired incarnation."""

    status = 409


class StorageError(NotebookOSError):
    """A file or the checkpoint store cannot be read or written."""

    status = 507


class StorageFull(StorageError):
    """No space is left on the device that holds the state folder or the store."""


class CorruptRecord(StorageError):
    """Stored bytes do not match their checksum, digest or MAC."""

    status = 500


class LogLost(CorruptRecord):
    """A host's log of a kernel is damaged or gone; its member can only join anew, as a learner."""


class ProtocolError(NotebookOSError):
    """A peer sent something that the wire protocol does not allow."""

    status = 502


class Defect(NotebookOSError):
    """The program broke one of its own rules (an invariant, a table of a life); report it."""
