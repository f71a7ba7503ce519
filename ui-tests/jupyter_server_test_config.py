"""The server that the browser tests talk to: no token, a fixed port, folders of its own.

Never use it elsewhere: Galata's helper takes all protection away.
"""

import atexit
import os
import shutil
from pathlib import Path
from tempfile import mkdtemp

from jupyterlab.galata import configure_jupyter_server

# Everything that a run leaves on disk is in one folder, which ends with the server.
folder = Path(mkdtemp(prefix="notebookos-ui-"))
atexit.register(shutil.rmtree, folder, ignore_errors=True)
for part in ("root", "workspaces", "state"):
    (folder / part).mkdir()
os.environ["JUPYTERLAB_GALATA_ROOT_DIR"] = str(folder / "root")

configure_jupyter_server(c)

c.ServerApp.ip = "127.0.0.1"
c.ServerApp.port = int(os.environ.get("UI_TEST_PORT", "8988"))
c.ServerApp.allow_root = True
c.LabApp.news_url = None
c.LabApp.extension_manager = "readonly"
shutil.rmtree(c.LabApp.workspaces_dir, ignore_errors=True)
c.LabApp.workspaces_dir = str(folder / "workspaces")

# A front end that was built but not installed comes first, where one is named.
if extensions := os.environ.get("UI_TEST_LABEXTENSIONS"):
    # Beside the helpers that Galata has put there.
    c.LabServerApp.extra_labextensions_path = [
        extensions,
        c.LabServerApp.extra_labextensions_path,
    ]

# A cluster of its own, whose agents do not outlive a server that is killed by more than this.
c.NotebookOSApp.state_folder = str(folder / "state")
c.NotebookOSApp.lease_s = 30.0
c.NotebookOSApp.gpus = "simulated"
