"""`python -m antiphon`: the same as the console script `antiphon`."""

from antiphon.cli.main import main

if __name__ == "__main__":
    main()
