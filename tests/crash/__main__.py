"""All kills, one after the other on the same data: ``python -m tests.crash``."""

import argparse
import sys
from pathlib import Path
from random import Random

from tests.crash.kill_callers import Soak, add_arguments
from tests.crash.kill_server import Killing
from tests.crash.kill_tools import play_stories
from tests.crash.scripts import conclude, prepared
from tests.crash.stories import STORIES


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--latest", type=float, default=1.2, help="a kill comes, in seconds")
    parser.add_argument("--bound", type=float, default=3.0, help="of what may be lost")
    parser.add_argument("--seed", type=int, default=None, help="to repeat a run's moments")
    parser.add_argument("--database", type=Path, help="a migrated one to begin with")
    options = parser.parse_args()
    random = Random(options.seed)
    with prepared(options.database) as ground:
        # This script comes first, because it creates the workspace and because errors in the
        # server's log count here.
        problems = Soak(ground=ground, options=options).play()
        killing = Killing(
            ground,
            sessions=len(set(STORIES)),
            latest=options.latest,
            bound=options.bound,
            random=random,
        )
        problems += killing.play(options.rounds)
        problems += play_stories(ground, rounds=options.rounds, random=random)
    return conclude(ground, problems)


if __name__ == "__main__":
    sys.exit(main())
