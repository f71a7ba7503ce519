"""A lease runs out by its clock, and a renewal counts from when it comes."""

from __future__ import annotations

import asyncio

import pytest

from notebookos_ext.agent.leases import LONGEST_LEASE_S, Lease
from notebookos_ext.clock import SystemClock, VirtualClock
from notebookos_ext.errors import InvalidRequest


def test_what_remains_is_counted_from_the_last_renewal() -> None:
    async def story() -> None:
        clock = VirtualClock()
        lease = Lease(clock, 10.0)
        clock.advance(4.0)
        assert lease.remaining_s == 6.0
        lease.renew(10.0)
        assert lease.remaining_s == 10.0
        clock.advance(11.0)
        assert lease.remaining_s == 0.0
        await lease.expired()

    asyncio.run(story())


def test_a_waiting_end_notices_longer_and_shorter_renewals() -> None:
    async def story() -> None:
        lease = Lease(SystemClock(), 0.05)
        ended = asyncio.create_task(lease.expired())
        lease.renew(1000.0)
        done, _ = await asyncio.wait([ended], timeout=0.2)
        assert not done
        lease.renew(0.01)
        await asyncio.wait_for(ended, 30.0)

    asyncio.run(story())


@pytest.mark.parametrize("lease_s", [0.0, -1.0, LONGEST_LEASE_S * 2, float("nan")])
def test_an_impossible_length_is_refused(lease_s: float) -> None:
    async def story() -> None:
        lease = Lease(VirtualClock(), 10.0)
        with pytest.raises(InvalidRequest, match="is not possible"):
            lease.renew(lease_s)
        assert lease.remaining_s == 10.0

    asyncio.run(story())
