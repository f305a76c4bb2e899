"""`python -m fsstore` runs `mountctl`: the installed package has another name than its command."""

import runpy

runpy.run_module("mountctl", run_name="__main__")
