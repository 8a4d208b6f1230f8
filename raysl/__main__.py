"""`python -m raysl`: the same as the `raysl` command."""

from raysl.cli import main

if __name__ == "__main__":
    main()
