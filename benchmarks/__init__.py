"""Measurements as ratios against the plain alternative; not part of the package."""
