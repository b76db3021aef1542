"""`python -m cli`: the command without its script."""

from cli.main import main

main()
