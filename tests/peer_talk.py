"""Conversations on one connection between two hosts: what passes, and what an eavesdropper does.

Commands: `connect a b` (a dials; `token-of-a=x`, `expects=c`, `version-of-a=9`) · `shake` (deliver
the handshake) · `put a GROUP NAME BYTES` (`urgent` as the group: it may overtake) · `send a N`
(deliver the next N records; `send a N changed|twice|cut|late` lets somebody meddle with the first)
· `waiting a`. A message shows as its name; its bytes are the name, padded.
"""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

from notebookos_ext.agent import peer_channel
from notebookos_ext.agent.peer_channel import SECRET_BYTES, PeerChannel
from notebookos_ext.agent.peer_outbox import Outbox
from notebookos_ext.errors import NotebookOSError

MEDDLING: dict[str, Callable[[bytes, bytes], bytes]] = {
    "changed": lambda one, two: one[:-1] + bytes([one[-1] ^ 1]) + two,
    "twice": lambda one, two: one + one,
    "late": lambda one, two: two + one,
    "cut": lambda one, two: one[:2] + one[3:] + two,
}


class End:
    def __init__(self, channel: PeerChannel, bytes_max: int) -> None:
        self.channel = channel
        self.outbox = Outbox(bytes_max)


class PeerConversation:
    """Understands the commands of this module's docstring; one conversation has two ends."""

    def __init__(self) -> None:
        self.ends: dict[str, End] = {}
        self.dialler = self.listener = ""

    def __call__(self, command: str) -> list[str]:
        verb, *words = command.split()
        plain = [word for word in words if "=" not in word]
        options = dict(word.split("=", 1) for word in words if "=" in word)
        try:
            return getattr(self, f"do_{verb}")(*plain, **options)  # type: ignore[no-any-return]
        except NotebookOSError as error:
            return [f"{type(error).__name__}: {error}"]

    def do_connect(self, dialler: str, listener: str, **options: str) -> list[str]:
        self.dialler, self.listener = dialler, listener
        for host, expected in ((dialler, options.get("expects", listener)), (listener, None)):
            with mock.patch.object(
                peer_channel, "VERSION", int(options.get(f"version-of-{host}", "2"))
            ):
                channel = PeerChannel(
                    host=host,
                    incarnation="1",
                    token=options.get(f"token-of-{host}", "t").encode() * 32,
                    secret=host.encode().ljust(SECRET_BYTES),
                    expected=expected,
                )
            self.ends[host] = End(channel, int(options.get("room", "1000000")))
        return ["connected"]

    def do_shake(self) -> list[str]:
        lines = []
        sender, receiver = self.dialler, self.listener
        data = self.ends[sender].channel.opening()
        while data:
            line = f"{sender} → {receiver}: {len(data)} bytes"
            data, messages = self.ends[receiver].channel.receive(data)
            assert messages == []
            lines.append(line + self._knows(receiver))
            sender, receiver = receiver, sender
        return lines

    def _knows(self, host: str) -> str:
        channel = self.ends[host].channel
        return f"; {host} is sure of {channel.peer}" if channel.is_open else ""

    def do_put(self, host: str, group: str, name: str, size: str = "0") -> list[str]:
        outbox = self.ends[host].outbox
        dropped = outbox.dropped
        outbox.put(name.encode().ljust(int(size), b"."), None if group == "urgent" else group)
        forgotten = outbox.dropped - dropped
        return [f"forgot {forgotten}"] if forgotten else ["waits"]

    def do_waiting(self, host: str) -> list[str]:
        outbox = self.ends[host].outbox
        return [f"{len(outbox)} messages, {outbox.waiting_bytes} bytes, forgot {outbox.dropped}"]

    def do_send(self, host: str, count: str, meddling: str = "") -> list[str]:
        here = self.ends[host]
        (there,) = (end for name, end in self.ends.items() if name != host)
        sealed = []
        lines = []
        for _ in range(int(count)):
            record = here.outbox.next_record()
            if record is None:
                break
            sealed.append((here.channel.seal(record), len(record)))
        if meddling:
            (one, _), (two, _) = sealed
            there.channel.receive(MEDDLING[meddling](one, two))
            return ["nobody noticed"]
        for data, size in sealed:
            _, messages = there.channel.receive(data)
            names = ", ".join(message.rstrip(b".").decode() for message in messages)
            lines.append(f"record of {size} bytes: {names or 'a part'}")
        return lines or ["nothing waits"]
