"""`python -m organs.cli`: the command without its script."""

from organs.cli.main import main

main()
