"""The simulator: the very same scheduler, in virtual time, on recorded or generated workloads."""
