"""How long the simulated world takes for what the scheduler asks. No delay is zero.

Each default says where it is from: *paper* (its text, code constants or published percentiles),
*ours* (docs/benchmarks.md) or *assumed*. A JSON file may replace any of them.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from notebookos_ext.errors import InvalidRequest
from notebookos_ext.simulation.distributions import Distribution, LognormalMixture


class Delays(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds, bytes and bytes per second."""

    host_boot_s: float = 120.0
    """From the request of a host until its agent has joined. Assumed: a cloud's GPU machine; the
    original only simulates it, by a sleep of about 15 s."""
    replica_start_cold_s: float = 10.0
    """A new process on a host without a pre-warmed one. Assumed: a container and the import of a
    deep-learning framework from a cold disk."""
    replica_start_prewarmed_s: float = 0.5
    """A replica forked from what has already imported everything. Ours: 0.34 s for three."""
    commit_s: Distribution = LognormalMixture(
        weights=(0.97, 0.03), mu=(-3.65, -1.532), sigma=(0.48, 0.5), max=2.0
    )
    """One entry of the kernel's log on a majority's disks. Paper: 55, 67 and 268 ms at p90, p95 and
    p99; fitted to these, median 27 ms."""
    cuda_init_s: float = 0.174
    """The first time that a process uses GPUs. Paper."""
    device_change_s: float = 0.6
    """To bring a process that has used some GPUs up on others. Assumed: the driver's checkpoint."""
    to_device_bytes_per_s: float = 11.11e9
    """Staging a model to its GPUs. Paper."""
    to_host_bytes_per_s: float = 12.48e9
    """Parking it in host memory again. Paper."""
    release_s: float = 0.05
    """Emptying caches and measuring, beside the copy. Assumed."""
    store_upload_bytes_per_s: float = 125e6
    """Paper (its driver's preset for S3)."""
    store_download_bytes_per_s: float = 200e6
    """Paper (the same preset)."""
    store_rate_spread: float = 0.05
    """Rates vary evenly by this share to both sides. Paper."""
    store_request_s: float = 0.05
    """Before the first byte. Assumed."""
    swap_member_s: float = 0.2
    """Exchanging one member of a kernel's Raft group for another that has caught up. Assumed: a few
    commits."""
    release_host_s: float = 10.0
    """From the decision to give a host back until it is not paid for any more. Paper's simulation:
    about 10 s."""
    message_s: float = 0.002
    """One message between controller and agent. Assumed."""
    checkpoint_bytes: tuple[int, ...] = (
        94_000_000,
        218_000_000,
        348_000_000,
        440_000_000,
        498_000_000,
        553_000_000,
    )
    """State of a session's model, one drawn for each session. Paper's six models: ResNet-18 and
    Inception v3 with their optimizer, Deep Speech 2, BERT, GPT-2 and VGG-16 without."""
    resubmit_after_s: float = 10.0
    """How long a user takes to submit a cell again whose executor was lost. Assumed."""


def read_delays(path: Path) -> Delays:
    """Delays from a JSON file; what it leaves out keeps its default. Raises InvalidRequest."""
    try:
        delays = msgspec.json.decode(path.read_bytes(), type=Delays)
    except (OSError, msgspec.DecodeError) as problem:
        raise InvalidRequest(f"{path} does not give delays: {problem}") from problem
    return check_delays(delays)


def check_delays(delays: Delays) -> Delays:
    """The delays themselves. Raises InvalidRequest for one that is not above zero."""
    for field in delays.__struct_fields__:
        value = getattr(delays, field)
        if isinstance(value, int | float) and not value > 0:
            raise InvalidRequest(
                f"the delay {field} is {value}; it must be above 0, since nothing takes no time"
            )
    if not delays.checkpoint_bytes or min(delays.checkpoint_bytes) <= 0:
        raise InvalidRequest("checkpoint_bytes needs one or more sizes above 0")
    return delays
