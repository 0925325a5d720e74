"""`python -m closedform` is the command `closedform`."""

from closedform.cli import main

if __name__ == "__main__":
    main()
