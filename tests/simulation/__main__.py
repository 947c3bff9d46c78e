"""``python -m tests.simulation SEED [VARIANT]``: one run of the takeover, printed from its beginning to its end."""

import logging
import sys
import tempfile
from pathlib import Path

from tests.simulation.takeover import simulate
from tests.simulation.variants import VARIANTS

logging.disable(logging.CRITICAL)
named = {each.name: each for each in VARIANTS}
with tempfile.TemporaryDirectory() as directory:
    print(simulate(int(sys.argv[1]), Path(directory), named[sys.argv[2]] if len(sys.argv) > 2 else None))
