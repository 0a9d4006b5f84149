"""``python -m stack`` is ``stackc``."""

from stack.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
