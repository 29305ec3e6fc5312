"""`python -m faultline` is the command `faultline`."""

from faultline.cli import main

main()
