"""`python -m stratafl` is `strata`."""

from stratafl.cli import command

if __name__ == "__main__":
    command()
