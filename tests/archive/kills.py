"""How often processes are killed: a few times in the suite, KILLS=100 times and more in `make nightly`."""

from __future__ import annotations

import os

#: Kills of one archive that is written and maintained, at all of its named points in turn.
KILLS = int(os.environ.get("KILLS", "3"))
#: Kills at each named point of a job that archives files.
ROUNDS = 3 if KILLS >= 60 else 1
