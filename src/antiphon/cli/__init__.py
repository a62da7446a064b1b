"""The command line. Each command imports its dependencies when it runs, so `antiphon --help` stays quick."""
