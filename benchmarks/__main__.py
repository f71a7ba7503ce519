"""`python -m benchmarks`, the command behind `make bench`."""

from __future__ import annotations

from benchmarks.kernels import main

main()
