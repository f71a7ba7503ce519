"""Runs cells: one replica process, its namespace and its link to the host agent."""
