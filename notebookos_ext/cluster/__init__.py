"""Decides. Events in, actions out; no clock, socket, process or chance of its own.

Reading order: model → events → actions → state → scheduler → invariants; then
placement, queueing, router, gpu_rule; `messages` and `entries` are what processes
say to each other and what a kernel's log holds; `consensus` is the Raft core.
"""
