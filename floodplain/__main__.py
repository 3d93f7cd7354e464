"""``python -m floodplain``."""

from floodplain.cli.main import main

if __name__ == "__main__":
    main()
