"""Answers the browser: REST handlers over snapshots, requests as events."""
