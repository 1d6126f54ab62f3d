"""`python -m stratafl` is `strata`."""

from stratafl.cli import main

if __name__ == "__main__":
    main()
