"""Install bubblewrap and git for the tests of commands, if that is allowed.

If the machine forbids sandboxes, these tests are skipped and say so.
"""

from .packages import provide

if __name__ == "__main__":
    provide(
        "bubblewrap and git for the tests of commands",
        *("bubblewrap", "git"),
        programs=("bwrap", "git"),
        without="without them the tests of commands fail, or are skipped",
    )
