"""`python -m mountctl`."""

from mountctl.main import main

main()
