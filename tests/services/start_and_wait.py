"""Starts a server, prints its process id, and waits to be killed."""

import sys
import threading

from tests.services.postgres import Postgres
from tests.services.valkey import Valkey

if __name__ == "__main__":
    server = {"postgres": Postgres, "valkey": Valkey}[sys.argv[1]]()
    server.start()
    sys.stdout.write(f"{server.pid} {server.folder.path}\n")
    sys.stdout.flush()
    threading.Event().wait()
