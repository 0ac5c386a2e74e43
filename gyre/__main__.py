"""``python -m gyre`` is ``gyre``."""

from gyre.cli.main import program

if __name__ == "__main__":
    program()
