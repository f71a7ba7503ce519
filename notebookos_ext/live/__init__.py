"""Acts, now: controller, router thread, backends and the Jupyter side around `cluster/`."""
