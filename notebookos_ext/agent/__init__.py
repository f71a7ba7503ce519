"""Keeps a host: devices, replica processes, Raft members and logs of one (virtual) machine."""
