"""``python -m app`` is ``gyre``."""

from app.cli.main import program

if __name__ == "__main__":
    program()
