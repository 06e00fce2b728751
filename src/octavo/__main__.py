"""`python -m octavo`: the `octavo` command."""

import sys

from octavo.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
