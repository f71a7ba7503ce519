"""The server that the browser tests talk to: no token, a fixed port, folders of its own.

Never use it elsewhere: Galata's helper takes all protection away.
"""

import os
from tempfile import mkdtemp

from jupyterlab.galata import configure_jupyter_server

configure_jupyter_server(c)

c.ServerApp.ip = "127.0.0.1"
c.ServerApp.port = int(os.environ.get("UI_TEST_PORT", "8988"))
c.ServerApp.allow_root = True
c.LabApp.news_url = None
c.LabApp.extension_manager = "readonly"

# A cluster of its own, whose agents do not outlive a server that is killed by more than this.
c.NotebookOSApp.state_folder = mkdtemp(prefix="notebookos-ui-")
c.NotebookOSApp.lease_s = 30.0
c.NotebookOSApp.gpus = "simulated"
