"""`python -m litegpu_opt` is `litegpu`."""

from .cli import main


if __name__ == "__main__":
    main()
